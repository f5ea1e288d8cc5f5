"""Checks values of random JSON schemas with the jsonschema package.

FILE has a line of JSON for each: {"schema":, "value":}. Exits 1 with those that do not fit, and 77
where the package is not installed.
"""
import json
import sys

try:
    from jsonschema import Draft202012Validator as Validator
except ImportError:
    print('schemas: no jsonschema (Debian: python3-jsonschema): skipped')
    sys.exit(77)


def main(path):
    wrong = checked = 0
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            case = json.loads(line)
            Validator.check_schema(case['schema'])
            checked += 1
            for error in Validator(case['schema']).iter_errors(case['value']):
                wrong += 1
                print(f'schemas: {error.json_path}: {error.message}\n{line}')
    print(f'schemas: {checked} values, {wrong} errors')
    return 0 if checked >= 200 and wrong == 0 else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))

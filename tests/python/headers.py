"""What the C headers declare: functions, structures and constants."""
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(os.environ.get('MC_SOURCE', pathlib.Path(__file__).parents[2]))
HEADERS = sorted((ROOT / 'lib/capi/mc').glob('*.h'))


def text():
    joined = '\n'.join(h.read_text() for h in HEADERS)
    joined = re.sub(r'/\*.*?\*/', ' ', joined, flags=re.S)
    return re.sub(r'\s+', ' ', re.sub(r'^#.*$', '', joined, flags=re.M))


def functions():
    """name: (result, parameters), as they are written."""
    found = {}
    for result, name, parameters in re.findall(r'MC_API ([\w* ]+?)(\w+)\(((?:[^()]|\([^()]*\))*)\);',
                                               re.sub(r'\(\*(\w+)\)\([^()]*\)', r'* \1', text())):
        found[name] = (result, [] if parameters.strip() == 'void' else parameters.split(','))
    return found


def kind(declaration):
    """'pointer', 'void', 'i4', 'u4' or 'u8' of a parameter, or of a result with any name behind it."""
    if '*' in declaration or '[' in declaration:
        return 'pointer'
    words = [w for w in declaration.split() if w not in ('const', 'struct')]
    for name in words[:-1] or words:
        known = {'void': 'void', 'int': 'i4', 'unsigned': 'u4', 'uint32_t': 'u4', 'mc_code': 'u4',
                 'mc_segment': 'u4', 'uint64_t': 'u8', 'size_t': 'u8', 'mc_batch': 'u8',
                 'mc_key': 'mc_key'}
        if name.startswith('mc_each'):  # functions that are called back
            return 'pointer'
        if name in known:
            return known[name]
    raise ValueError(f'a type that this test does not know: {declaration}')


def structures():
    """name: its members."""
    found = {}
    for name, body in re.findall(r'typedef struct (\w+) \{(.*?)\} \w+;', text()):
        members = []
        for declaration in filter(str.strip, body.split(';')):
            for part in declaration.split(','):
                members.append(re.search(r'(\w+)(\[\d+\])?\s*$', part)[1])
        found[name] = members
    return found


def constants():
    names = []
    for body in re.findall(r'enum(?: \w+)? \{(.*?)\}', text()):
        names += re.findall(r'(\w+) =', body)
    return names


def compiled(folder):
    """What a C compiler says: {'sizeof x': n, 'x.y': (offset, size), 'CONSTANT': n}."""
    prints = []
    for name, members in structures().items():
        prints.append(f'printf("sizeof {name} %zu 0\\n", sizeof({name}));')
        for member in members:
            prints.append(f'printf("member {name}.{member} %zu %zu\\n", offsetof({name}, {member}), '
                          f'sizeof((({name} *)0)->{member}));')
    for name in constants():
        prints.append(f'printf("constant {name} %lld 0\\n", (long long){name});')
    source = folder / 'sizes.c'
    source.write_text('#include <stdio.h>\n' + ''.join(f'#include "mc/{h.name}"\n' for h in HEADERS) +
                      'int main(void) {\n' + '\n'.join(prints) + '\nreturn 0;\n}\n')
    program = folder / 'sizes'
    subprocess.run([os.environ.get('CC', 'cc'), '-I', ROOT / 'lib/capi', source, '-o', program],
                   check=True)
    out = {}
    for line in subprocess.run([program], check=True, capture_output=True,
                               text=True).stdout.splitlines():
        what, name, first, second = line.split()
        out[what, name] = (int(first), int(second))
    return out

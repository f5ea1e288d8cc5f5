"""Runs ctest over a build folder and judges its results. Started by scripts/test, which sets the
environment.

usage: scripts/test BUILD [--repeat N] [--table FILE] [options of ctest]

A test that failed is run once more, alone. If it passes then, it is printed as FLAKY with both
outputs, and the run stays green; a second such test in one run, or a second failure, is red. The
end lists the slowest tests, what did not run and why, and ctest's closing lines for both attempts
together.

  --repeat N     runs the selection N times, nothing twice, and prints each test's failures of N
  --table FILE   appends a line a test, tab between: build folder, seconds, verdict, name. The
                 verdict is passed, failed, flaky, skipped or not run. MC_TEST_TABLE says the same
  MC_TEST_JOBS   how many tests run at a time; two a CPU without it
  MC_TEST_PAUSES a session's id: its processes stand still while a test is run again
"""
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SLOWEST = 20
RETRIES_MAX = 10  # with more failures, the machine or the build is broken: running again says nothing
QUIET = r' *\d+/\d+ Test .*(Passed|Skipped)| +Start |Internal ctest|Test project|$'
Result = collections.namedtuple('Result', 'name verdict seconds output why')


def read_results(path):
    """The tests of one run of ctest by name, or none when it wrote nothing."""
    if not path.exists():
        return {}
    results = {}
    for case in xml.etree.ElementTree.parse(path).iter('testcase'):
        skipped = case.find('skipped')
        why = skipped.get('message', '') if skipped is not None else ''
        output = (case.findtext('system-out') or '').strip()
        if case.get('status') == 'run':
            verdict = 'passed'
        elif case.get('status') == 'fail':
            verdict = 'failed'
        elif why.startswith('SKIP_') or case.get('status') == 'disabled':
            verdict, why = 'skipped', (output.splitlines() or ['it does not say why'])[-1]
        else:
            verdict = 'not run'
        name = case.get('name')
        results[name] = Result(name, verdict, float(case.get('time', 0)), output, why)
    return results


def failures(results):
    return [r for r in results.values() if r.verdict in ('failed', 'not run')]


def run_ctest(build, words, quiet=False):
    """(exit status, results, total seconds). Its lines pass through, but for the closing ones."""
    with tempfile.TemporaryDirectory() as folder:
        junit = pathlib.Path(folder) / 'junit.xml'
        command = ['ctest', '--test-dir', build, '--output-on-failure', '--no-tests=error',
                   '-j', os.environ.get('MC_TEST_JOBS', '1'), *words,
                   '--output-junit', str(junit), '--test-output-size-passed', '300000']
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, errors='replace')
        closing = []
        for line in child.stdout:
            if closing or re.match(r'\d+% tests passed, ', line):
                closing.append(line)
            elif not quiet or not re.match(QUIET, line):
                print(line, end='', flush=True)
        status = child.wait()
        results = read_results(junit)
        if not results:
            print(*closing, sep='', end='')
        for name, why in re.findall(r'\t *\d+ - (.*) \((.*)\)', ''.join(closing)):
            if results[name].verdict == 'failed':
                results[name] = results[name]._replace(why=why)  # Failed, Timeout, SEGFAULT
        total = re.search(r'Total Test time \(real\) = +([0-9.]+)', ''.join(closing))
        return status, results, float(total[1]) if total else 0.0


def cases_without_end(build, failed):
    """Test cases that a process which died did not come to the end of: (test, cases)."""
    shown = subprocess.run(['ctest', '--test-dir', build, '--show-only=json-v1'], text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    commands = {t['name']: t.get('command', []) for t in json.loads(shown)['tests']}
    for result in failed:
        command = commands.get(result.name, [])
        if not any(w.startswith('--source-file=') for w in command):
            continue
        listed = subprocess.run([*command, '--list-test-cases'], text=True, errors='replace',
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        left = [line for line in listed.splitlines() if not line.startswith(('[doctest]', '==='))]
        for name in re.findall(r'\d\.\d{6} s: (.*)', result.output):  # tests/main.cc asks for it
            if name in left:
                left.remove(name)
        if left:
            yield result.name, left


def print_slowest(results):
    slowest = sorted(results.values(), key=lambda r: -r.seconds)[:SLOWEST]
    print(f'\nThe {len(slowest)} slowest tests:')
    for result in slowest:
        print(f'{result.seconds:9.2f} s  {result.name}')


def print_python(results):
    """The gate's part of the Python tests is to take less than 90 s in all."""
    seconds = [r.seconds for r in results.values() if r.name.startswith('python/')]
    if seconds:
        print(f'{sum(seconds):9.2f} s  the {len(seconds)} of python/ together')


def print_absent(build, results):
    absent = [r for r in results.values() if r.verdict in ('skipped', 'not run')]
    cases = list(cases_without_end(build, [r for r in results.values() if r.verdict == 'failed'])) \
        if failures(results) else []
    if absent or cases:
        print('\nDid not run:')
    for result in absent:
        print(f'  {result.name}: {result.why.removeprefix("skipped: ")}')
    for name, left in cases:
        print(f'  {name}: its process ended before these cases did')
        for case in left:
            print(f'    {case}')


def run_again(build, words, failed):
    if not 0 < len(failed) <= RETRIES_MAX:
        return {}, 0.0
    print(f'\n{len(failed)} failed: run once more, alone', flush=True)
    signal_session(signal.SIGSTOP)
    try:
        _, second, seconds = run_ctest(build, [*words, '--rerun-failed', '-j', '1'])
    finally:
        signal_session(signal.SIGCONT)
    return second, seconds


def signal_session(number):
    """To what MC_TEST_PAUSES names. By session: ninja gives each command a process group."""
    session = os.environ.get('MC_TEST_PAUSES')
    for path in pathlib.Path('/proc').glob('[0-9]*/stat') if session else ():
        try:
            if path.read_text().rpartition(')')[2].split()[3] == session:
                os.kill(int(path.parent.name), number)
        except OSError:
            pass  # it has ended


def print_flaky(first, second):
    for result in second.values():
        print(f'\nFLAKY {result.name}')
        for when, run in ('failed at first', first[result.name]), ('passed when run again', result):
            print(f'---- {when}, {run.seconds:.2f} s\n{run.output}')
        print('----')


def write_table(path, build, results):
    with open(path, 'a') as table:
        for r in results.values():
            table.write(f'{build}\t{r.seconds:.2f}\t{r.verdict}\t{r.name}\n')


def run_once(build, words, table):
    status, results, seconds = run_ctest(build, words)
    if not results:
        return status
    first = dict(results)
    second, more = run_again(build, words, failures(results))
    flaky = {name: r for name, r in second.items() if r.verdict == 'passed'}
    results.update((name, r._replace(verdict='flaky')) for name, r in flaky.items())
    if table:
        write_table(table, build, results)
    print_slowest(results)
    print_python(results)
    print_absent(build, results)
    print_flaky(first, flaky)
    failed = failures(results)
    note = ''
    if len(flaky) == 1:
        note = ', 1 of them FLAKY'
    elif flaky:  # one a run is forgiven; more are failures
        failed = failures(first)
        note = f', {len(flaky)} of them FLAKY, where one is allowed'
    if failed:
        print('\nFailed:')
        for result in failed:
            print(f'  {result.name}: {result.why}')
    passed = len(results) - len(failed)
    print(f'\n{passed * 100 // len(results)}% tests passed, {len(failed)} tests failed '
          f'out of {len(results)}{note}')
    print(f'\nTotal Test time (real) = {seconds + more:.2f} sec', flush=True)
    return 1 if failed else 0 if flaky else status


def run_repeatedly(build, words, times):
    failed, tests = collections.Counter(), 0
    for n in range(1, times + 1):
        status, results, seconds = run_ctest(build, words, quiet=True)
        if not results:
            return status or 1
        tests = len(results)
        bad = [r.name for r in failures(results)]
        failed.update(bad)
        print(f'run {n} of {times}: {len(bad)} of {tests} failed, {seconds:.2f} s', flush=True)
    print(f'\nFailures of {times} runs, of {tests} tests:')
    for name, count in failed.most_common():
        print(f'{count:5} of {times}  {name}')
    print(f'{len(failed)} tests failed at least once')
    return 1 if failed else 0


def take_option(words, name):
    """The value of one of our options, taken out of the words; ctest has a --repeat of its own."""
    if name not in words[:-1]:
        return None
    at = words.index(name)
    if name == '--repeat' and not words[at + 1].isdigit():
        return None
    value = words[at + 1]
    del words[at:at + 2]
    return value


def main(words):
    if not words or words[0].startswith('-'):
        asked = words[:1] in (['-h'], ['--help'])
        print(__doc__.strip().split('\n\n', 1)[1], file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    build, words = words[0], words[1:]
    table, times = take_option(words, '--table'), take_option(words, '--repeat')
    if times is not None:
        return run_repeatedly(build, words, int(times))
    return run_once(build, words, table)


try:
    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:
    sys.exit(130)

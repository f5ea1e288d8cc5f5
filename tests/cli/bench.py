"""Tests of bench/peers, bench/scale.py and bench/gate_record.py, run by tests/cli/bench.sh: no peer, no mc."""
import contextlib
import io
import json
import os
import pathlib
import random
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / 'bench'), str(ROOT / 'bench/peers')]
import area  # noqa: E402
import gate_record  # noqa: E402
import scale  # noqa: E402
import scale_plot  # noqa: E402
import side  # noqa: E402
import store_worker  # noqa: E402
import stores  # noqa: E402
import transfers  # noqa: E402
import turns  # noqa: E402

FAKE = '''
import threading

class Peer:
    def add(self, a, b):
        print('what a library prints')
        return a + b
    def refuse(self):
        raise ValueError('not that')
    def end(self):
        import os
        os._exit(3)
    def poll(self):
        def forever():
            while True:
                pass
        threading.Thread(target=forever, daemon=True).start()
'''


class FakeSide:
    """Writes down when it runs."""

    def __init__(self, name, values, log):
        self.name, self.values, self.log = name, iter(values), log

    def __str__(self):
        return f'{self.name} 1.2'

    @contextlib.contextmanager
    def turn(self):
        self.log.append(self.name)
        yield self
        self.log.append('-')


def compared(case, sides, count, measure=None):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        lines = turns.compare(case, sides[0], sides[1:], measure or (lambda s: next(s.values)), count)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == lines
    return lines, err.getvalue()


class Turns(unittest.TestCase):
    def test_ratio_is_the_median_of_turns_and_the_first_does_not_count(self):
        log = []
        ours = FakeSide('mc', [1, 10, 10, 10], log)
        theirs = FakeSide('Peer', [1000, 20, 30, 80], log)
        (line,), _ = compared(turns.Case('a', 'us', True, {'Peer': 2.0}), [ours, theirs], 3)
        self.assertEqual((line['ratio'], line['n'], line['against'], line['met']), (3, 3, 'Peer 1.2', True))
        self.assertEqual(log, ['Peer', '-', 'mc', '-', 'mc', '-', 'Peer', '-', 'Peer', '-', 'mc', '-',
                               'mc', '-', 'Peer', '-'])

    def test_a_rate_is_better_when_it_is_bigger(self):
        (line,), _ = compared(turns.Case('a', '/s', False, {'Peer': 1.0}),
                              [FakeSide('mc', [5] * 2, []), FakeSide('Peer', [10] * 2, [])], 1)
        self.assertEqual((line['ratio'], line['met']), (0.5, False))

    def test_a_peer_that_fails_is_named_and_left_out(self):
        def measure(one):
            if one.name == 'Broken':
                raise side.Failed('no such call')
            return next(one.values)
        sides = [FakeSide('mc', [1] * 9, []), FakeSide('Broken', [], []), FakeSide('Peer', [2] * 9, [])]
        lines, said = compared(turns.Case('a', 'us', True), sides, 2, measure)
        self.assertEqual([line['against'] for line in lines], ['Peer 1.2'])
        self.assertIn('a: beside Broken 1.2: skipped: no such call', said)

    def test_a_failure_of_ours_is_raised(self):
        def measure(one):
            raise side.Failed('other bytes than were sent')
        with self.assertRaisesRegex(side.Failed, 'a: mc 1.2: other bytes'):
            compared(turns.Case('a', 'us', True), [FakeSide('mc', [], [])], 1, measure)


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        (pathlib.Path(folder.name) / 'fake.py').write_text(FAKE)
        self.side = side.Side('Fake', '1', folder.name)
        self.addCleanup(self.side.close)
        self.worker = self.side.worker(sys.executable, 'fake', {'PYTHONPATH': folder.name})

    def test_answers_and_what_fails(self):
        self.assertEqual(self.worker.call('add', a=1, b=2), 3)
        with self.assertRaisesRegex(side.Failed, 'ValueError: not that'):
            self.worker.call('refuse')
        self.assertEqual(self.worker.call('add', a='x', b='y'), 'xy')
        with self.assertRaisesRegex(side.Failed, r'fake ended: see .*Fake\.log'):
            self.worker.call('end')

    def ticks(self):
        words = pathlib.Path(f'/proc/{self.worker.child.pid}/stat').read_text().rpartition(')')[2].split()
        return int(words[11]) + int(words[12])

    def test_a_thread_that_polls_stands_still_between_turns(self):
        self.worker.call('poll')
        self.side.pause()
        before, spent = self.ticks(), time.process_time()
        while time.process_time() - spent < 0.1:  # where a poller would have run beside us
            pass
        self.assertEqual(self.ticks(), before)
        with self.side.turn():
            self.assertEqual(self.worker.call('add', a=2, b=2), 4)
        tasks = pathlib.Path(f'/proc/{self.worker.child.pid}/task').iterdir()
        self.assertEqual({side._state(task) for task in tasks}, {'T'})


class Bytes(unittest.TestCase):
    def test_one_wrong_byte_is_seen(self):
        size = area.TILE + 5000
        pages = area.Area(size)
        area.fill(pages.address, size, 7)
        self.assertTrue(area.holds(pages.address, size, 7))
        self.assertTrue(area.holds(pages.address + 4096, size - 4096, 7, 4096))
        self.assertFalse(area.holds(pages.address, size, 8))
        at = random.Random(1).randrange(size)
        pages.view[at] ^= 1
        self.assertFalse(area.holds(pages.address, size, 7))
        area.zero(pages.address, size)
        self.assertFalse(any(pages.view))


class Timing(unittest.TestCase):
    def test_every_call_is_timed_and_enough_are_made(self):
        made = []
        took = store_worker.StoreWorker.timed([lambda: made.append(1)] * 3, 0.0)
        self.assertEqual((len(took), len(made)), (3, 3))
        took = store_worker.StoreWorker.timed([lambda: None] * 500, 0.0)
        self.assertEqual(len(took), store_worker.LEAST)
        self.assertTrue(all(each >= 0 for each in took))

    def test_a_quantile_of_calls(self):
        self.assertEqual(stores.rate_of([0.5, 0.25, 0.1], 0.5), 4.0)
        self.assertEqual(stores.rate_of([0.5, 0.25, 0.1], 0.0), 10.0)

    def test_scattered_rows_do_not_overlap(self):
        pieces = transfers.scattered(4096)
        self.assertEqual(len(pieces), transfers.LAYERS * transfers.BLOCKS)
        for side_of in (0, 1):
            places = sorted(piece[side_of] for piece in pieces)
            self.assertTrue(all(b - a == 8192 for a, b in zip(places, places[1:])))
        for what, _, kind, pieces in transfers.cases(False):
            end = max(max(p[0], p[1]) + p[2] for p in pieces)
            self.assertLessEqual(end, transfers.LARGEST, what)
            self.assertIn(kind, transfers.KINDS)


class ScalePage(unittest.TestCase):
    def test_all_that_was_measured_is_drawn(self):
        found = {'put': {1: (900.0, 40), 4: (1800.0, 90)}, 'get': {1: (9e3, 8), 4: (3.1e4, 20)}}
        text = scale_plot.page(scale.panels(found, found), 'a <note>')
        page = xml.etree.ElementTree.fromstring(text)
        kinds = [element.tag.split('}')[1] for element in page]
        self.assertEqual((kinds.count('polyline'), kinds.count('circle')), (8, 16))
        words = [element.text for element in page if element.tag.endswith('text')]
        self.assertIn('a <note>', words)
        self.assertEqual((words.count('put'), words.count('get')), (4, 4))
        for element in page:
            for side, limit in (('cx', 864), ('cy', 572)):
                self.assertTrue(0 <= float(element.get(side, 0)) <= limit)

    def test_ticks_hold_all_values(self):
        self.assertEqual(scale_plot.ticks(31_000, False), [0, 10_000, 20_000, 30_000, 40_000])
        self.assertEqual(scale_plot.ticks(90, True, 8), [1, 10, 100])
        self.assertEqual(scale_plot.ticks(1, True, 1), [1, 10])
        self.assertEqual([scale_plot.number(v) for v in (40, 1500, 2.5e6)], ['40', '1.5k', '2.5M'])

    def test_a_figure_is_the_median_of_ratios_of_turns(self):
        def turn(many, one):
            return tuple({op: {'values-per-s': rate, 'p99-us': 7} for op in ('put', 'get')} for rate in (many, one))
        lines = list(scale.figures('clients of one node', 'one client', 4, [turn(30, 10), turn(8, 2), turn(20, 10)]))
        self.assertEqual([line['ratio'] for line in lines], [3.0, 3.0])
        self.assertEqual(lines[0]['case'], 'put 16KiB, 4 clients of one node')


class Gate(unittest.TestCase):
    WAS = {'peers: a / NIXL': 2.0, 'peers: b / Mooncake': 1.0}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / 'gate.json'

    def test_a_fall_of_16_percent_is_red_and_named(self):
        faults = gate_record.faults(self.WAS, {'peers: a / NIXL': 2.0 * 0.84, 'peers: b / Mooncake': 1.0})
        self.assertEqual(len(faults), 1)
        self.assertIn('peers: a / NIXL: fell from 2 to 1.68, by 16 %', faults[0])

    def test_a_fall_of_14_percent_and_a_rise_are_not(self):
        self.assertEqual(gate_record.faults(self.WAS, {'peers: a / NIXL': 2.0 * 0.86,
                                                       'peers: b / Mooncake': 9.0}), [])

    def test_what_was_not_measured_is_red_and_named(self):
        (fault,) = gate_record.faults(self.WAS, {'peers: a / NIXL': 2.0})
        self.assertIn('peers: b / Mooncake: was 1, and was not measured', fault)

    def test_what_has_no_record_is_red_and_named(self):
        (fault,) = gate_record.faults(self.WAS, {**self.WAS, 'peers: new / NIXL': 3.0})
        self.assertIn('peers: new / NIXL: 3, and has no record: bench/gate.py --record', fault)

    def test_what_counts_is_kept_by_the_clock_or_by_cpu_time(self):
        figure = {'bench': 'xfer-kv', 'case': 'shm read paged', 'against': 'shm contiguous', 'ratio': 3.0, 'spread': 2.0,
                  'n': 7, 'cpu': 100.0, 'against_cpu': 90.0}
        found = {}
        gate_record.keep(found, figure, 'shm (read|write)', '', True)
        gate_record.keep(found, figure, 'shm read', 'tcp', False)
        gate_record.keep(found, figure, 'tcp', '', False)
        self.assertEqual({name: f['ratio'] for name, f in found.items()},
                         {'xfer-kv: shm read paged, CPU time / shm contiguous': 0.9})
        gate_record.keep(found, figure, 'shm', 'shm', False)
        self.assertEqual(found['xfer-kv: shm read paged / shm contiguous']['ratio'], 3.0)
        with self.assertRaisesRegex(gate_record.GateError, 'shm read paged: it says no CPU time'):
            gate_record.keep(found, {**figure, 'cpu': 0}, 'shm', '', True)

    def test_no_record_says_how_to_make_one(self):
        with self.assertRaisesRegex(gate_record.GateError, r'no record .*gate\.json: bench/gate\.py --record'):
            gate_record.read(self.path, 'this')
        gate_record.write(self.path, 'other', self.WAS)
        with self.assertRaisesRegex(gate_record.GateError, r'no record of this machine \(this\): .*--record'):
            gate_record.read(self.path, 'this')
        for text in ('', '[]', '{"machines": 1}', '{"machines": {"this": {"a": "fast"}}}'):
            self.path.write_text(text)
            with self.assertRaises(gate_record.GateError, msg=text):
                gate_record.read(self.path, 'this')

    def test_a_machine_is_renewed_and_others_stay(self):
        gate_record.write(self.path, 'this', {'old': 1.0})
        gate_record.write(self.path, 'other', self.WAS)
        gate_record.write(self.path, 'this', {'new': 3.0})
        self.assertEqual(gate_record.read(self.path, 'this'), {'new': 3.0})
        self.assertEqual(gate_record.read(self.path, 'other'), self.WAS)
        with self.assertRaisesRegex(gate_record.GateError, 'nothing was measured'):
            gate_record.write(self.path, 'this', {})

    def test_names_outlive_a_peers_version(self):
        figure = {'bench': 'peers', 'case': 'a', 'against': 'NIXL 1.5.1'}
        self.assertEqual(gate_record.name_of(figure), 'peers: a / NIXL')
        figure = {'bench': 'peers', 'case': 'b (mc f32)', 'against': 'llama.cpp 0.3.36 Q4_1'}
        self.assertEqual(gate_record.name_of(figure), 'peers: b / llama.cpp Q4_1')

    def test_the_record_of_the_project_is_one(self):
        record = json.loads((ROOT / 'bench/gate.json').read_text())
        for kind in record['machines']:
            self.assertTrue(gate_record.read(ROOT / 'bench/gate.json', kind))


if __name__ == '__main__':
    os.environ.pop('PYTHONPATH', None)
    unittest.main(verbosity=0)

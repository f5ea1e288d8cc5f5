#!/usr/bin/env python3
"""Ratios that must not fall: ours beside a peer or a physical limit, each the median of five turns
that alternate, against those that bench/gate.json records for this kind of machine. bench/run gate
compares; `bench/gate.py --record` renews the record, on purpose, on a machine that does nothing else."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import typing

sys.dont_write_bytecode = True
import gate_record  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get('MC_BIN', HERE.parent / 'build/release')).resolve()
RECORD = HERE / 'gate.json'
TURNS = '5'
PEERS = [sys.executable, HERE / 'peers/main.py', '--quick', '--busy', '--turns', TURNS]
KV = r'(shm (read|write) (strided|blocks|paged)|bare copies of blocks)'


class Run(typing.NamedTuple):
    """A command, which of its cases count, and beside whom."""
    command: list
    cases: str
    peer: str
    cpu: bool = False  # by CPU time: a busy machine does not change who needs how much of it


# Those that say the same on a machine that is busy. Copies and spinning do; peers that hand each call to
# another thread do not, nor does memory.
RUNS = (
    Run([*PEERS, '--section', 'transfers', '--only'],
        r'default (read|write) (4 KiB x1|4 KiB x16|1 MiB x1), (engine|unregistered)', 'NIXL'),
    Run([BUILD / 'xfer_kv_bench', '--quick'], KV, '', cpu=True),
    Run([BUILD / 'store_data_bench', '--quick', '--only', 'tcp'], 'get 16x1MiB over tcp', 'transfer engine', cpu=True),
    Run([BUILD / 'store_data_bench', '--quick', '--only', 'cold'], 'get 8MiB cold', 'non-temporal copy', cpu=True),
    Run([BUILD / 'engine_decode_bench', '--quick'], 'eight sequences', 'one', cpu=True),
)


def measured(runs):
    """The figures of all runs that count, by name."""
    found = {}
    for run in runs:
        command = [str(word) for word in run.command] + [run.cases] * (run.command[-1] == '--only')
        if not pathlib.Path(command[0]).exists():
            raise gate_record.GateError(f'no {command[0]}: run make bench')
        with subprocess.Popen(command, text=True, env={**os.environ, 'MC_BIN': str(BUILD)},
                              stdout=subprocess.PIPE) as child:
            for line in child.stdout:
                if line.startswith('{'):
                    gate_record.keep(found, json.loads(line), run.cases, run.peer, run.cpu)
        if child.returncode == 77:
            raise gate_record.GateError('no peer is installed: scripts/setup --peers installs them')
        if child.returncode != 0:
            raise gate_record.GateError(f'{" ".join(command)} failed')
    return found


def main():
    parser = argparse.ArgumentParser(prog='bench/gate.py', description=__doc__)
    parser.add_argument('--quick', action='store_true', help='as bench/run says it; the gate has one length')
    parser.add_argument('--record', action='store_true', help='write the ratios of this run to bench/gate.json')
    parser.add_argument('--file', type=pathlib.Path, default=RECORD, help='another record')
    given = parser.parse_args()
    machine = gate_record.machine()
    try:
        if given.record:
            found = measured(RUNS)
            gate_record.write(given.file, machine, {name: f['ratio'] for name, f in found.items()})
            print(f'gate: {given.file}: {len(found)} ratios of {machine}', file=sys.stderr)
            return 0
        recorded = gate_record.read(given.file, machine)
        found = measured(RUNS)
    except gate_record.GateError as e:
        print(f'gate: {e}', file=sys.stderr)
        return 1
    for line in gate_record.lines(recorded, found):
        print(json.dumps(line), flush=True)
    faults = gate_record.faults(recorded, {name: f['ratio'] for name, f in found.items()})
    for fault in faults:
        print(f'gate: {fault}', file=sys.stderr)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())

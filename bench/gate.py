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

sys.dont_write_bytecode = True
import gate_record  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get('MC_BIN', HERE.parent / 'build/release')).resolve()
RECORD = HERE / 'gate.json'
TURNS = '5'
PEERS = [sys.executable, HERE / 'peers/main.py', '--quick', '--busy', '--turns', TURNS]
# What is run, which of its cases count, and beside whom: those that say the same on a machine that is
# busy. Copies and spinning do; peers that hand each call to another thread do not, nor does memory.
RUNS = (
    ([*PEERS, '--section', 'transfers'],
     r'default (read|write) (4 KiB x1|4 KiB x16|1 MiB x1), (engine|unregistered)', 'NIXL'),
)


def measured(runs):
    """The figures of all runs that count, by name."""
    found = {}
    for command, cases, peer in runs:
        with subprocess.Popen([str(word) for word in [*command, '--only', cases]], text=True,
                              env={**os.environ, 'MC_BIN': str(BUILD)}, stdout=subprocess.PIPE) as child:
            for line in child.stdout:
                if line.startswith('{'):
                    figure = json.loads(line)
                    if figure['against'].startswith(peer):
                        found[gate_record.name_of(figure)] = figure
        if child.returncode == 77:
            raise gate_record.GateError('no peer is installed: scripts/setup --peers installs them')
        if child.returncode != 0:
            raise gate_record.GateError(f'{" ".join(map(str, command))} failed')
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

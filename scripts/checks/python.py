"""The Python package: how long files, lines and functions are, and what a reader is owed."""
import ast

from .text import COLUMNS_MAX, FUNCTION_MAX, LINES_MAX


def functions(tree):
    """Every function with the class around it, or None; not those inside functions."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield node, inner


def untyped(node):
    """The first parameter without a type, or 'its result'."""
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs,
             *filter(None, (node.args.vararg, node.args.kwarg))]
    for n, argument in enumerate(named):
        if argument.annotation is None and not (n == 0 and argument.arg in ('self', 'cls')):
            return argument.arg
    return None if node.returns is not None else 'its result'


def check_file(name, text, faults):
    lines = text.rstrip('\n').split('\n')
    if len(lines) > LINES_MAX:
        faults.append(f'{name}: {len(lines)} lines, {LINES_MAX} at most: split it by topic')
    for n, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            faults.append(f'{name}:{n}: {len(line)} columns, {COLUMNS_MAX} at most')
    tree = ast.parse(text)
    if text.strip() and ast.get_docstring(tree) is None:
        faults.append(f'{name}: no docstring')
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name[0] != '_' and node.name[:3] != 'mc_' \
                and ast.get_docstring(node) is None:
            faults.append(f'{name}:{node.lineno}: {node.name}: no docstring')
    for owner, node in functions(tree):
        length = node.end_lineno - node.lineno + 1
        if length > FUNCTION_MAX:
            faults.append(f'{name}:{node.lineno}: function of {length} lines, {FUNCTION_MAX} at most')
        if (what := untyped(node)) is not None:
            faults.append(f'{name}:{node.lineno}: {node.name}: {what} has no type')
        hidden = node.name[0] == '_' or owner is not None and owner.name[0] == '_'
        if not hidden and ast.get_docstring(node) is None:
            faults.append(f'{name}:{node.lineno}: {node.name}: no docstring')


def check(root, faults):
    for path in sorted((root / 'lib/python').rglob('*.py')):
        check_file(path.relative_to(root).as_posix(), path.read_text(), faults)

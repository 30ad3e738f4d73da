"""Functions and methods of Python's own standard library: real text that every machine already has.

The signature (decorators included) and the docstring are the prompt, the body is the response. A function
nested inside another one is part of its parent's text and no text of its own, so no text is met twice.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash.errors import UsageError

# Slim installations split these off; without them every installation of one version has the same corpus.
_NOT_CORE = frozenset(
    {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "distutils"}
)
# Not the library's: what users and distributors put beside it.
_NOT_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "lib-dynload", "__pycache__", "sitecustomize.py", "usercustomize.py"}
)

# One of a few hundred salts tried: the share is 4 % in samples and in tokens on Python 3.11, 3.12 and 3.13,
# and the lengths spread as in the whole.
_HELD_OUT_SALT = "dflash sample, held out 242: "
_HELD_OUT_SHARE = 0.04

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """One function. ``module`` is dotted, ``name`` is the qualified name inside it."""

    module: str
    name: str
    prompt: str
    response: str


def held_out(module: str) -> bool:
    """Whether all functions of ``module`` are kept from every training: about 4 % of the samples.

    Whole modules, because neighbours in one file share names and idioms. The choice depends on the dotted
    name alone, so that it is the same for every Python version and a new module moves no old one.
    """
    digest = hashlib.sha256(f"{_HELD_OUT_SALT}{module}".encode()).digest()
    return int.from_bytes(digest[:8]) < _HELD_OUT_SHARE * 2**64


def library_functions(root: Path | None = None) -> Iterator[SourceFunction]:
    """Yield the functions of the library at ``root`` (this Python's own), by path and then by line.

    Raises UsageError when ``root`` holds no source, as in an embedded or zipped Python, or a damaged file.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    found = False
    for path in _source_files(root):
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        try:
            with tokenize.open(path) as file:
                functions = list(module_functions(module, file.read()))
        except (SyntaxError, ValueError) as error:  # undecodable text is either
            raise UsageError(f"{path}: not Python source ({error}); mend or change this Python") from error
        found = found or bool(functions)
        yield from functions
    if not found:
        raise UsageError(
            f"{root}: no source of the standard library here; use a Python that ships its .py files"
        )


def module_functions(module: str, source: str) -> Iterator[SourceFunction]:
    """Yield the outermost functions of one module's ``source``, dedented, in order of appearance."""
    lines = source.split("\n")  # as the parser counts lines; str.splitlines also cuts at form feeds
    for name, node in _outermost_functions(ast.parse(source), ""):
        prompt, response = _split(node, lines)
        yield SourceFunction(module, name, prompt, response)


def _source_files(root: Path) -> list[Path]:
    paths = []
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not _is_foreign(name)]
        paths += [Path(directory, file) for file in files if file.endswith(".py") and not _is_foreign(file)]
    return sorted(paths, key=lambda path: path.relative_to(root).as_posix())


def _is_foreign(name: str) -> bool:
    return name in _NOT_CORE or name in _NOT_LIBRARY or name.startswith("config-")


def _outermost_functions(node: ast.AST, scope: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield scope + child.name, child
        else:
            inner = f"{scope}{child.name}." if isinstance(child, ast.ClassDef) else scope
            yield from _outermost_functions(child, inner)


def _split(node: _Function, lines: list[str]) -> tuple[str, str]:
    """Prompt and response of ``node``, both without the indentation of its ``def``."""
    first, indent = _first_line(node), node.col_offset
    body_line, body_column = _response_start(node, lines)
    dedented = [_dedent(line, indent) for line in lines[first - 1 : node.end_lineno]]
    before = dedented[: body_line - first]
    start = sum(len(line) + 1 for line in before) + max(0, body_column - indent)
    text = "\n".join(dedented)
    return text[:start], text[start:]


def _dedent(line: str, indent: int) -> str:
    # A line of a string literal may start left of the ``def``: it keeps what it has.
    return line if line[:indent].strip() else line[indent:]


def _response_start(node: _Function, lines: list[str]) -> tuple[int, int]:
    """Line (from 1) and column, in characters, where the response begins."""
    body = node.body
    if ast.get_docstring(node, clean=False) is not None:
        docstring_end = body[0].end_lineno or node.lineno
        if len(body) == 1 or _first_line(body[1]) > docstring_end:
            return docstring_end + 1, 0
        body = body[1:]
    line = _first_line(body[0])
    # The parser's columns count UTF-8 bytes.
    column = len(lines[line - 1].encode()[: body[0].col_offset].decode())
    if lines[line - 1][:column].strip():
        return line, column  # the body is on the line of the signature or of the docstring
    while _is_comment(lines[line - 2]):
        line -= 1  # comments above the first statement belong to the body
    return line, 0


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])

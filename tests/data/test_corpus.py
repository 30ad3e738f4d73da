"""Which text becomes prompt and which response, against hand-cut sources and against ``inspect``."""

from __future__ import annotations

import argparse
import ast
import collections
import inspect
import json.decoder
import logging
import textwrap
import types
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from dflash.data.corpus import SourceFunction, held_out, library_functions, module_functions
from dflash.errors import UsageError


def cut(source: str) -> list[tuple[str, str, str]]:
    return [(f.name, f.prompt, f.response) for f in module_functions("m", source)]


def test_signature_and_docstring_are_the_prompt() -> None:
    source = 'def f(a,\n      b=1):\n    """Doc.\n\n    More.\n    """\n    # why\n    return a\n\n\nx = f\n'
    assert cut(source) == [
        ("f", 'def f(a,\n      b=1):\n    """Doc.\n\n    More.\n    """\n', "    # why\n    return a")
    ]


def test_without_docstring_comments_above_the_body_are_response() -> None:
    source = "def f(\n    a,  # first\n    # second\n):\n    # why\n\n    # really\n    return a\n"
    assert cut(source) == [
        ("f", "def f(\n    a,  # first\n    # second\n):\n", "    # why\n\n    # really\n    return a")
    ]


def test_decorators_belong_to_the_prompt_and_a_decorated_body_to_the_response() -> None:
    source = "@a\n@b(\n  1)\nasync def f():\n    @c\n    def g():\n        pass\n    return g\n"
    assert cut(source) == [
        ("f", "@a\n@b(\n  1)\nasync def f():\n", "    @c\n    def g():\n        pass\n    return g")
    ]


@pytest.mark.parametrize(
    ("source", "prompt", "response"),
    [
        ("def f(): return 1", "def f(): ", "return 1"),
        ("def f(é='ß'): return 'ü'", "def f(é='ß'): ", "return 'ü'"),
        ('def f(): "doc"; return 1', 'def f(): "doc"; ', "return 1"),
        ('def f():\n    "doc"; return 1', 'def f():\n    "doc"; ', "return 1"),
        ('def f():\n    "doc"  # note\n    return 1', 'def f():\n    "doc"  # note\n', "    return 1"),
        ('def f():\n    "doc"', 'def f():\n    "doc"', ""),
        ("def f():\n\tif 1:\n\t\treturn", "def f():\n", "\tif 1:\n\t\treturn"),
        ("\x0c\ndef f():\n    x = '\x0c'\n    return x", "def f():\n", "    x = '\x0c'\n    return x"),
    ],
)
def test_unusual_layouts(source: str, prompt: str, response: str) -> None:
    assert cut(source) == [("f", prompt, response)]


def test_methods_are_dedented_and_literals_left_of_the_def_keep_their_columns() -> None:
    source = "if 1:\n  class A:\n    class B:\n      def m(self):\n        return '''\n  x\n        y'''\n"
    assert cut(source) == [("A.B.m", "def m(self):\n", "  return '''\n  x\n  y'''")]


def test_nested_functions_stay_in_their_parents() -> None:
    source = "def f():\n    class C:\n        def g(self):\n            return 1\n    return C\n"
    assert [name for name, _, _ in cut(source)] == ["f"]


@pytest.mark.parametrize("module", [argparse, ast, collections, json.decoder, logging])
def test_text_is_what_inspect_finds(module: types.ModuleType) -> None:
    mine = {
        f.name: f.prompt + f.response for f in module_functions(module.__name__, inspect.getsource(module))
    }
    compared = 0
    for owner in [module, *vars(module).values()]:
        if owner is not module and not (inspect.isclass(owner) and owner.__module__ == module.__name__):
            continue
        for function in vars(owner).values():
            if not inspect.isfunction(function) or function.__qualname__ not in mine:
                continue
            if function.__code__.co_name != function.__name__:
                continue  # a decorator's wrapper that goes by its function's name
            text = mine[function.__qualname__]
            theirs = textwrap.dedent(inspect.getsource(function)).rstrip("\n")
            assert theirs.startswith(text)
            assert all(line.lstrip().startswith("#") for line in theirs[len(text) :].split("\n")[1:])
            compared += 1
    assert compared >= 8


def test_library_parses_back_and_splits_after_the_docstring(library: Sequence[SourceFunction]) -> None:
    assert len(library) > 10_000
    for function in library[::7]:
        (node,) = ast.parse(function.prompt + function.response).body
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        assert node.name == function.name.rpartition(".")[2]
        if not function.response:
            continue
        alone = function.prompt + ("pass" if not function.prompt.endswith("\n") else "    pass")
        (head,) = ast.parse(textwrap.dedent(alone)).body
        assert isinstance(head, ast.FunctionDef | ast.AsyncFunctionDef)
        assert ast.get_docstring(head) == ast.get_docstring(node)
        assert ast.dump(head.args) == ast.dump(node.args)


def test_split_off_packages_are_not_read(tmp_path: Path) -> None:
    for name in (
        "b.py",
        "a/__init__.py",
        "a/test/t.py",
        "tkinter/t.py",
        "config-3/c.py",
        "site-packages/s.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def f():\n    return 1\n")
    assert [f.module for f in library_functions(tmp_path)] == ["a", "b"]


def test_library_without_source_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no source of the standard library .* use a Python"):
        list(library_functions(tmp_path))


@pytest.mark.parametrize("content", [b"def f(:\n", b"x = '\xff'\n", b"# coding: nonsense\n", b"x = 1\0\n"])
def test_a_damaged_library_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    (tmp_path / "b.py").write_bytes(content)
    with pytest.raises(UsageError, match=r"b\.py: not Python source .* mend or change this Python"):
        list(library_functions(tmp_path))


def test_held_out_share_over_names() -> None:
    """Of many names a share of 4 % within five standard deviations, and no run of neighbours."""
    flags = [held_out(f"package.module{i}") for i in range(20_000)]
    assert abs(sum(flags) - 800) < 5 * (20_000 * 0.04 * 0.96) ** 0.5
    assert abs(sum(a and b for a, b in pairwise(flags)) - 32) < 5 * 32**0.5

"""Finding the compiled kernels."""

import ctypes
import shutil
from pathlib import Path

import msgpack._cmsgpack as any_shared_library
import pytest

from prime_protocol import native


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "__init__.py"))
    native.library.cache_clear()
    yield tmp_path
    native.library.cache_clear()


def test_kernels_that_were_not_built_are_none(folder: Path) -> None:
    assert native.library("delta") is None


def test_kernels_of_another_machine_are_none(folder: Path) -> None:
    (folder / "delta.so").write_bytes(b"\x7fELF of something else")
    assert native.library("delta") is None


def test_built_kernels_load_once(folder: Path) -> None:
    shutil.copy(any_shared_library.__file__, folder / "delta.so")
    assert isinstance(native.library("delta"), ctypes.CDLL)
    assert native.library("delta") is native.library("delta")

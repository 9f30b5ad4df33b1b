"""The structure of the product as tests/house.py reads it: what was reached stays."""

from __future__ import annotations

from pathlib import Path

from .house import ROOT, House

HOUSE = House(ROOT)
AT_THE_ROOT = 12


def test_no_circle_of_imports() -> None:
    """Imports inside of functions count, those for type checkers alone do not."""
    assert HOUSE.circles == ()


def test_rooms_import_those_below() -> None:
    assert HOUSE.upward == ()


def test_only_sessions_ask_for_devices_by_name() -> None:
    asking = {module for module, imported in HOUSE.imports.items() if "runtime.devices" in imported}
    assert {module for module in asking if module.startswith("runtime.")} == {"runtime.execution.session"}


def test_few_files_at_the_root_of_the_runtime() -> None:
    assert len(HOUSE.at_the_root) <= AT_THE_ROOT


def house_of(root: Path, modules: dict[str, str]) -> House:
    for name, text in modules.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf8")
    return House(root)


def test_a_class_name_stands_once_in_a_top_folder() -> None:
    assert not HOUSE.names_twice


def test_docstrings_say_what_a_thing_is() -> None:
    """None opens with a question word."""
    assert not HOUSE.riddles


def test_a_circle_is_found(tmp_path: Path) -> None:
    modules = {
        "nd/__init__.py": "",
        "nd/low.py": "def high():\n    from .high import function\n    return function\n",
        "nd/high.py": "from . import low\n",
        "nd/typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .user import User\n",
        "nd/user.py": "from .typed import Typed\n",
    }
    assert house_of(tmp_path, modules).circles == (("nd.high", "nd.low"),)


def test_an_import_of_a_room_above_is_found(tmp_path: Path) -> None:
    modules = {"runtime/ir/graph.py": "def f():\n    from ..passes import fold\n", "runtime/passes/fold.py": ""}
    assert house_of(tmp_path, modules).upward == ("runtime.ir.graph -> runtime.passes.fold",)


def test_operators_are_told_by_their_records() -> None:
    """Tables that name operators are rare outside of `ops/`: what an operator is stands on its record."""
    assert len(HOUSE.tables) <= 15, HOUSE.tables
    assert len(HOUSE.naming("Conv")) <= 12, HOUSE.naming("Conv")


def test_few_modules_construct_sessions() -> None:
    """The product's own are compiled in one module, and kept in one cache."""
    assert len(HOUSE.constructing) <= 3, HOUSE.constructing


def test_a_module_that_constructs_sessions_is_found(tmp_path: Path) -> None:
    modules = {"train/one.py": "s = session.Session(graph)\n", "nd/two.py": "'Session(graph)'\n"}
    assert house_of(tmp_path, {**modules, "tools/three.py": "s = Session(graph)\n"}).constructing == ("train.one",)


def test_a_table_of_operators_is_found(tmp_path: Path) -> None:
    (tmp_path / "nd").mkdir()
    (tmp_path / "nd/tables.py").write_text(
        "\n".join(
            (
                '__all__ = ["Relu", "Conv", "Gemm"]',
                'A = {"Relu", "Conv", "com.microsoft::QGemm"}',
                'B = {"Relu": 1, "Conv": 2, "Other": 3}',
                'C = (("Relu Conv Gemm".split(), 1), ("Relu", "Conv", "Conv"))',
                'D = {("", "Relu"): 1, ("", "Gemm"): 2, ("com.microsoft", "QGemm"): 3}',
                'E = "Relu, Conv and Gemm are operators"',
            )
        ),
        "utf8",
    )
    house = House(tmp_path)
    assert [table.partition(": ")[0] for table in house.tables] == [f"nd/tables.py:{line}" for line in (2, 5, 4)]
    assert house.naming("Conv") == ("nd/tables.py",)

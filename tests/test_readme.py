"""The README shows what the project prints, and its commands are the ones that run.

UPDATE_README=1 writes the output, the picture and the table into the README instead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from code_size import lines_of_code

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
UPDATE = os.environ.get("UPDATE_README") == "1"
MODULES = "config data model distributed train checkpoint metrics launch".split()

needs_setup = pytest.mark.skipif(
    not (ROOT / ".venv" / ".complete").exists(),
    reason="make setup has not run here, so the README's commands were not run",
)


def commands() -> list[str]:
    """The commands of all bash blocks, without their comments."""
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def block(name: str) -> re.Match[str]:
    """What stands between the two markers of that name."""
    pattern = rf"(?<=tests/test_readme.py -->\n)(?:(?!-->).)*?(?=<!-- end of {name} -->)"
    match = re.search(pattern, README.read_text(), re.DOTALL)
    assert match is not None, f"README.md has no block named {name}"
    return match


def replace(name: str, content: str) -> None:
    """Put ``content`` between the two markers."""
    text, (start, end) = README.read_text(), block(name).span()
    README.write_text(text[:start] + content + text[end:])


def blurred(output: str) -> str:
    """Output without what differs between two runs: numbers, hashes, folders."""
    return re.sub(r"\S*/\S*|\b[0-9a-f]{16}\b|\d+(\.\d+)?", "~", output)


def shell(command: str, timeout_s: float = 300, exit_code: int = 0) -> str:
    """Run a README command exactly as it is printed."""
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


class TestTable:
    def test_the_map_names_each_module_with_its_question_and_lines(self) -> None:
        """A map with old numbers is worse than none."""
        rows = ["\n| read in this order | it answers | lines of code |\n|---|---|---|\n"]
        for name in MODULES:
            path = ROOT / "trainer_core" / f"{name}.py"
            docstring = path.read_text().split('"""')[1]
            question = re.search(r'answers: "(.*?)"', docstring, re.DOTALL)
            assert question is not None
            text = " ".join(question[1].split())
            rows.append(
                f"| [{name}](trainer_core/{name}.py) | {text} | {lines_of_code(path)} |\n"
            )
        table = "".join(rows) + "\n"
        if UPDATE:
            replace("modules", table)
        assert block("modules")[0] == table

    def test_every_local_link_leads_somewhere(self) -> None:
        """A dead link on the first screen costs the reader's trust."""
        for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
            assert (ROOT / target).exists(), target


class TestCommands:
    def test_each_command_is_run_by_a_test(self) -> None:
        """A command that nobody runs is wrong sooner or later."""
        tested = [
            "make setup", "make train", "make lab",
            ".venv/bin/python scripts/launch.py --run-dir runs/first --data digits",
            ".venv/bin/torchrun --standalone --nproc-per-node 2 --max-restarts 3 "
            "scripts/launch.py --run-dir runs/second --data digits",
            ".venv/bin/python scripts/audit_run.py runs/second --plot runs/second.png",
            ".venv/bin/python -m rehearsal list",
            ".venv/bin/python -m rehearsal start lift_to_distributed",
            ".venv/bin/python -m rehearsal blank lift_to_distributed > attempt.py",
            ".venv/bin/python -m rehearsal check lift_to_distributed attempt.py",
        ]  # fmt: skip
        assert commands() == tested

    @needs_setup
    @pytest.mark.ranks
    def test_make_train_prints_what_the_readme_shows(self) -> None:
        """Output that was pasted by hand shows a program that no longer exists."""
        output = shell("make --silent train")
        if UPDATE:
            # Shown as a clone in any folder prints it.
            replace("demo", "```\n$ make train\n" + output.replace(f"{ROOT}/", "") + "```\n")
            (picture,) = re.findall(r"\S*/sample_map\.png", output)
            shutil.copy(picture, ROOT / "docs" / "sample_map.png")
        shown = block("demo")[0].replace("$ make train\n", "").strip("`\n")
        assert blurred(shown).splitlines() == blurred(output).splitlines()

    @needs_setup
    @pytest.mark.ranks
    def test_the_training_commands_run_as_printed(self) -> None:
        """Whoever copies a command expects it to work."""
        if any((ROOT / "runs" / name).exists() for name in ("first", "second")):
            pytest.skip("runs/first or runs/second is somebody's; these commands were not run")
        try:
            for command in commands()[3:6]:
                output = shell(command)
            assert "proved" in output
            assert (ROOT / "runs" / "second.png").stat().st_size > 10_000
        finally:
            for name in ("first", "second"):
                shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)
            (ROOT / "runs" / "second.png").unlink(missing_ok=True)

    @needs_setup
    @pytest.mark.ranks
    def test_the_rehearsal_commands_run_as_printed(self) -> None:
        """The check is of the blank, and says so: nothing was typed."""
        attempt = ROOT / "attempt.py"
        if attempt.exists():
            pytest.skip("attempt.py is somebody's; these commands were not run")
        try:
            *before, check = commands()[6:]
            listed, brief, _ = [shell(command) for command in before]
            assert "lift_to_distributed" in listed
            assert "The clock runs" in brief
            assert "NOT ATTEMPTED" in shell(check, exit_code=1)
        finally:
            attempt.unlink(missing_ok=True)

    @needs_setup
    def test_make_lab_serves_the_start_notebook(self, tmp_path: Path) -> None:
        """The first thing a newcomer types must not need a second thing."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        arguments = (
            f"--no-browser --port={port} --allow-root --IdentityProvider.token=rehearsal"
        )
        url = f"http://127.0.0.1:{port}/api/contents/notebooks/00_start_here.ipynb?token=rehearsal"
        with (tmp_path / "lab.log").open("w") as log:
            lab = subprocess.Popen(
                ["make", "lab", f"ARGS={arguments}"],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            assert answer(url)["type"] == "notebook"
        finally:
            os.killpg(lab.pid, signal.SIGTERM)
            lab.wait(30)


def answer(url: str, timeout_s: float = 120) -> dict[str, Any]:
    """The JSON at ``url``, as soon as somebody serves it."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                content: dict[str, Any] = json.load(response)
                return content
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

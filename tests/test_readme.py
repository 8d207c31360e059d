"""The README shows what the project really prints, and its commands run as printed.

UPDATE_README=1 writes the outputs, the picture and the table into the README instead.
"""

from __future__ import annotations

import ast
import inspect
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from code_size import lines_of_code
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend

from rehearsal.engine.programs import Program
from scripts.sync_notebooks import MAP, addresses

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
UPDATE = os.environ.get("UPDATE_README") == "1"
MODULES = "config data model distributed train checkpoint metrics launch".split()
FIRST_DRILL = "samples_repeat_from_the_second_epoch"
FIRST_GUESS = "sed 's/drawn = torch/torch.manual_seed(0); &/'"

needs_setup = pytest.mark.skipif(
    not (ROOT / ".venv" / ".complete").exists(),
    reason="not checked: the README's commands, because make setup has not run here",
)


def commands() -> list[str]:
    """The commands in all bash blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text(), re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def block(name: str) -> re.Match[str]:
    """The text between the two markers of that name."""
    pattern = rf"(?<=tests/test_readme.py -->\n)(?:(?!-->).)*?(?=<!-- end of {name} -->)"
    match = re.search(pattern, README.read_text(), re.DOTALL)
    assert match is not None, f"README.md has no block named {name}"
    return match


def replace(name: str, content: str) -> None:
    """Put ``content`` between the two markers."""
    text, (start, end) = README.read_text(), block(name).span()
    README.write_text(text[:start] + content + text[end:])


def blurred(output: str) -> str:
    """Output without what differs from run to run: numbers and their lists, hashes, folders."""
    single = re.sub(r"\S*/\S*|\b[0-9a-f]{16}\b|\d+(\.\d+)?", "~", output)
    return re.sub(r"~(, ~)+(, \.\.\.)?", "~", single)


def shell(command: str, timeout_s: float = 300, exit_code: int = 0) -> str:
    """Run a README command exactly as it is printed."""
    done = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def own_attempt() -> Iterator[Path]:
    """The attempt.py that the README's commands write, deleted afterward."""
    attempt = ROOT / "attempt.py"
    if attempt.exists():
        pytest.skip("not checked: attempt.py exists, and may be yours")
    yield attempt
    attempt.unlink(missing_ok=True)


def texts_in(path: Path) -> Iterator[str]:
    """All text in a file; in Python, each string literal with ~ for what it formats."""
    if path.suffix != ".py":
        yield path.read_text()
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(x.value if isinstance(x, ast.Constant) else "~" for x in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


class TestTable:
    def test_the_table_has_each_modules_question_and_lines_of_code(self) -> None:
        """A table with stale numbers is worse than none."""
        head = "| read in this order | question it answers | lines of code | practice |"
        rows = [f"\n{head}\n|---|---|---|---|\n"]
        for name in MODULES:
            path = ROOT / "trainer_core" / f"{name}.py"
            docstring = path.read_text().split('"""')[1]
            question = re.search(r'answers: "(.*?)"', docstring, re.DOTALL)
            assert question is not None
            text = " ".join(question[1].split())
            (notebook,) = (ROOT / "notebooks" / "drills").glob(f"*_cell_{name}.ipynb")
            rows.append(
                f"| [{name}](trainer_core/{name}.py) | {text} | {lines_of_code(path)} "
                f"| [drill](notebooks/drills/{notebook.name}) |\n"
            )
        table = "".join(rows) + "\n"
        if UPDATE:
            replace("modules", table)
        assert block("modules")[0] == table

    def test_the_map_is_the_start_notebooks(self) -> None:
        """Three maps that differ send a reader in three directions."""
        text = (ROOT / MAP).read_text().strip()
        wanted = "\n" + re.sub(r"\]\((?!http)", "](notebooks/", text) + "\n\n"
        if UPDATE:
            replace("map", wanted)
        assert block("map")[0] == wanted

    def test_the_links_to_colab_open_this_version(self) -> None:
        """They are the shortest way to a first verdict, so a dead one costs the most."""

        def on_colab(name: str) -> str:
            return addresses(ROOT, f"{name}.ipynb")["{{colab}}"]

        start, live, rehearse = map(on_colab, ("00_start_here", "01_live", "02_rehearse"))
        line = (
            f"[![Open in Colab](docs/colab-badge.svg)]({start}) opens the start notebook with "
            f"nothing to set up; [the live trainer]({live}), [02_rehearse]({rehearse}) and "
            f"[all drills]({addresses(ROOT, '')['{{all_on_colab}}']}) open there too.\n"
        )
        if UPDATE:
            replace("colab", line)
        assert block("colab")[0] == line

    def test_every_local_link_works(self) -> None:
        """A dead link on the first screen costs the reader's trust."""
        for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
            assert (ROOT / target).exists(), target

    def test_the_messages_under_when_something_fails_exist(self) -> None:
        """Nobody finds the remedy for a message that is worded differently."""
        section = README.read_text().partition("## When something fails")[2]
        messages = re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)
        assert len(messages) >= 5
        files = [ROOT / "Makefile", *(ROOT / "trainer_core").rglob("*.py")]
        texts = [text for file in files for text in texts_in(file)]
        for message in messages:
            pattern = re.sub(r"\d+", "~", re.sub(r"Python 3\.\d+", "PYTHON", message))
            words = re.escape(pattern).replace("PYTHON", r"Python 3\.\d+")
            words = words.replace(re.escape("..."), ".*")
            assert any(re.search(words, text, re.DOTALL) for text in texts), message


class TestCommands:
    def test_each_command_is_run_by_a_test(self) -> None:
        """A command that nobody runs goes stale sooner or later."""
        tested = [
            "make setup",
            f".venv/bin/python -m rehearsal blank {FIRST_DRILL} | {FIRST_GUESS} > attempt.py",
            f".venv/bin/python -m rehearsal check {FIRST_DRILL} attempt.py --seed 2",
            "make train",
            ".venv/bin/python scripts/launch.py --run-dir runs/first --data digits",
            ".venv/bin/torchrun --standalone --nproc-per-node 2 --max-restarts 3 "
            "scripts/launch.py --run-dir runs/second --data digits --device cpu",
            ".venv/bin/python scripts/audit_run.py runs/second --plot runs/second.png",
            "make lab",
            ".venv/bin/python -m rehearsal list",
            ".venv/bin/python -m rehearsal start lift_to_distributed",
            ".venv/bin/python -m rehearsal blank lift_to_distributed > attempt.py",
            ".venv/bin/python -m rehearsal check lift_to_distributed attempt.py",
            ".venv/bin/python -m rehearsal cards",
            ".venv/bin/python -m rehearsal ask --topic recovery",
            ".venv/bin/python -m rehearsal today",
            ".venv/bin/python scripts/launch.py --run-dir runs/random --data molecules "
            "--split random --max-epochs 10",
            ".venv/bin/python scripts/launch.py --run-dir runs/scaffold --data molecules "
            "--split scaffold --max-epochs 10",
        ]
        assert commands() == tested

    @needs_setup
    @pytest.mark.ranks
    def test_the_first_check_prints_what_the_readme_shows(
        self, own_attempt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first thing a reader sees must be what the program really says."""
        monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
        blank, check = commands()[1:3]
        shell(blank)
        output = shell(check, exit_code=1)
        if UPDATE:
            replace("verdict", f"```\n$ {blank}\n$ {check}\n{output}```\n")
        shown = block("verdict")[0].strip("`\n").splitlines()
        assert shown[:2] == [f"$ {blank}", f"$ {check}"]
        assert blurred("\n".join(shown[2:])) == blurred(output.strip("\n"))

    @needs_setup
    @pytest.mark.ranks
    def test_make_train_prints_what_the_readme_shows(self) -> None:
        """Output pasted by hand shows a program that no longer exists."""
        output = shell("make --silent train")
        if UPDATE:
            # Without this machine's paths.
            replace("demo", "```\n$ make train\n" + output.replace(f"{ROOT}/", "") + "```\n")
            (picture,) = re.findall(r"\S*/sample_map\.png", output)
            shutil.copy(picture, ROOT / "docs" / "sample_map.png")
        shown = block("demo")[0].replace("$ make train\n", "").strip("`\n")
        assert blurred(shown).splitlines() == blurred(output).splitlines()

    @needs_setup
    @pytest.mark.ranks
    def test_the_training_commands_run_as_printed(self) -> None:
        """If you copy a command, you expect it to work."""
        if any((ROOT / "runs" / name).exists() for name in ("first", "second")):
            pytest.skip("not checked: runs/first or runs/second exists, and may be yours")
        try:
            for command in commands()[4:7]:
                output = shell(command)
            assert "proved" in output
            assert (ROOT / "runs" / "second.png").stat().st_size > 10_000
        finally:
            for name in ("first", "second"):
                shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)
            (ROOT / "runs" / "second.png").unlink(missing_ok=True)

    @needs_setup
    @pytest.mark.ranks
    def test_the_rehearsal_commands_run_as_printed(
        self, own_attempt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Checking an untouched blank says that there is nothing to check yet."""
        monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
        *before, check = commands()[8:12]
        listed, brief, _ = [shell(command) for command in before]
        assert "lift_to_distributed" in listed
        assert "clock" in brief
        assert own_attempt.exists()
        assert "NOT ATTEMPTED" in shell(check, exit_code=1)

    @needs_setup
    @pytest.mark.ranks
    def test_the_deck_s_commands_run_as_printed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a terminal, the end of the input accepts what is suggested."""
        monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
        listing, ask = commands()[12:14]
        assert "recovery" in shell(listing)
        assert "due in 1 day" in shell(f"echo 'I save the optimizer' | {ask}")

    @needs_setup
    @pytest.mark.ranks
    def test_the_plans_command_runs_as_printed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is the first thing to type every evening."""
        monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path))
        assert "The interview map (chapter 10)" in shell(commands()[14])

    @needs_setup
    @pytest.mark.ranks
    def test_the_biotech_commands_show_what_the_readme_says(self) -> None:
        """A random split that flattered nobody would leave nothing to explain."""
        pytest.importorskip("rdkit")
        names = ("random", "scaffold")
        if any((ROOT / "runs" / name).exists() for name in names):
            pytest.skip("not checked: runs/random or runs/scaffold exists, and may be yours")
        try:
            shown = [shell(command) for command in commands()[15:17]]
            found = [re.search(r"AUROC (0\.\d+)", output) for output in shown]
            random, scaffold = (float(match[1]) for match in found if match)
            assert random > scaffold + 0.1
        finally:
            for name in names:
                shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)

    @needs_setup
    @pytest.mark.ranks
    def test_make_lab_serves_the_start_notebook(self, tmp_path: Path) -> None:
        """The first thing a newcomer types must work on its own."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # As root, too: in a container, people are root.
        arguments = f"--no-browser --port={port} --IdentityProvider.token=rehearsal"
        url = f"http://127.0.0.1:{port}/api/contents/work/00_start_here.ipynb?token=rehearsal"
        work = {path: path.read_bytes() for path in (ROOT / "work").rglob("*.ipynb")}
        with (tmp_path / "lab.log").open("w") as log:
            lab = subprocess.Popen(
                ["make", "lab", f"ARGS={arguments}"],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            assert answer(url)["type"] == "notebook"
        finally:
            os.killpg(lab.pid, signal.SIGTERM)
            lab.wait(30)
        assert all(path.read_bytes() == content for path, content in work.items())


def answer(url: str, timeout_s: float = 120) -> dict[str, Any]:
    """The JSON at ``url``, as soon as it is served."""
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


# Exits in a world of two; alone, it runs until its agent restarts it with a peer.
WAITS_FOR_A_PEER = """
import os, pathlib, time
pathlib.Path("started-" + os.environ["WORLD_SIZE"]).touch()
time.sleep(0 if os.environ["WORLD_SIZE"] == "2" else 300)
"""


@pytest.mark.ranks
@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_joining_node_ends_every_agent_unless_the_shared_store_is_off(
    switch: str, tmp_path: Path
) -> None:
    """Without the README's advice, a job that should grow ends instead (torch 2.13)."""
    source = inspect.getsource(c10d_rendezvous_backend)
    assert '"read_timeout", 60' in source, "the README says 60 s"
    (tmp_path / "rank.py").write_text(WAITS_FOR_A_PEER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"

    def start_agent(address: str) -> Program:
        command = [
            "-m",
            "torch.distributed.run",
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--max-restarts=3",
            "--monitor-interval=0.1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            f"--local-addr={address}",
            # The last one is what takes 60 s by default.
            "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,read_timeout=3",
            "rank.py",
        ]
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": switch}
        return Program(*command, environment=environment, folder=tmp_path)

    # The first address sorts before the second, so the first agent stays the node of rank 0.
    agents = [start_agent("127.0.0.1")]
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started-1").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        agents.append(start_agent("localhost"))
        codes = [agent.wait(90) for agent in agents]
        errors = [agent.stderr for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait(30)
            agent.close()
    assert codes == ([0, 0] if switch == "1" else [1, 1])
    if switch == "0":
        # Both wait 3 s for a key that the other node sets. The first to give up takes the store
        # with it if it is the store's node, so the other may report a lost connection instead.
        expected = "wait timeout after 3000ms, keys: .*(MASTER_ADDR|role_info)"
        assert re.search(expected, "".join(errors))

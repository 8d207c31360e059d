"""What a person sees: a drill in JupyterLab, in a real browser.

Serves the notebook on loopback and drives the system's chromium over it. Needs ``chromium`` (on
Debian: apt-get install chromium); without one the test is skipped, and says so.
REHEARSAL_SCREENSHOTS names a folder in which the pictures are kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rehearsal
from llm_stub import examines, serving
from rehearsal.grading.drill import Drill, load
from rehearsal.incidents.case import POSTMORTEM
from rehearsal.incidents.draw import draw
from rehearsal.interviews.interviewer import script_of
from rehearsal.session.clock import pace
from rehearsal.session.widgets import TickingClock, stopping
from scripts import work_folder

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ROOT = Path(__file__).resolve().parents[2]
# The names that .ci/browser looks for too.
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
TICK = re.compile(r"(\d+):(\d\d) of")

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not CHROMIUM,
        reason="no chromium here (apt-get install chromium), so no browser was driven",
    ),
]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a separate JupyterLab; nothing of this user's is read or written."""
    (source,) = (ROOT / "notebooks/drills").glob("*_lift_to_distributed.ipynb")
    served = tmp_path / "served"
    # As make lab lays them out, so that links between the notebooks work.
    work_folder.copy_notebooks(ROOT / "notebooks", served)
    shutil.copy(source, served)
    settings = tmp_path / "settings"
    settings.mkdir()
    overrides = {
        # Keep cells that are out of view in the page, so that they can be found.
        "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
        # No auto-closing brackets: the cell must contain exactly what was typed.
        "@jupyterlab/codemirror-extension:plugin": {
            "defaultConfig": {"autoClosingBrackets": False}
        },
        "@jupyterlab/apputils-extension:notification": {
            "fetchNews": "false",
            "checkForUpdates": False,
        },
        # The page's own color scheme decides, so that a test can switch it.
        "@jupyterlab/apputils-extension:themes": {"adaptive-theme": True},
    }
    (settings / "overrides.json").write_text(json.dumps(overrides))
    port = free_port()
    folders = {
        name: str(tmp_path / name.lower())
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "IPYTHONDIR",
            "REHEARSAL_HOME",
            "JUPYTERLAB_WORKSPACES_DIR",
        )
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--allow-root",
        "--IdentityProvider.token=",
        "--ServerApp.password=",
        f"--ServerApp.root_dir={served}",
        f"--LabApp.app_settings_dir={settings}",
    ]
    with (tmp_path / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **folders, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/api", server, tmp_path / "lab.log")
        yield f"http://127.0.0.1:{port}/lab/tree/{source.name}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.URLError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)


# What somebody types who has only heard of sharding; no text that would spoil the drill.
EACH_FOR_ITSELF = """\
mine = slice(dist.get_rank(), None, dist.get_world_size())
    train_alone(
        model, inputs[mine], targets[mine],
        epochs=epochs, global_batch_size=global_batch_size, lr=lr,
    )"""
CELLS = ["warm_up()", "start(", "NotImplementedError", "check(", "# hint("]


def code_cells(page: Page) -> list[Locator]:
    """The notebook's code cells, by position, because their texts will change.

    Without the first, which is collapsed.
    """
    cells = [page.locator(".jp-CodeCell").nth(1 + place) for place in range(len(CELLS))]
    for cell, text in zip(cells, CELLS, strict=True):
        assert text in cell.locator(".jp-InputArea-editor").inner_text()
    return cells


def run(page: Page, which: Locator) -> None:
    """Click into a cell and run it, as a person does."""
    which.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def retype(page: Page, which: Locator, text: str) -> None:
    """Replace a cell's text in one insertion: the editor would indent what keys type."""
    from playwright.sync_api import expect

    editor = which.locator(".cm-content")
    editor.click()
    expect(editor).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Enter")


def seconds_shown(page: Page) -> int:
    shown = TICK.search(page.locator(".rehearsal-clock").inner_text())
    assert shown is not None
    return 60 * int(shown[1]) + int(shown[2])


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page with a frozen clock, which a test moves by hand."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 900, "height": 600})
        page.clock.install(time=BEGAN - 10)
        page.clock.pause_at(BEGAN)
        yield page
        browser.close()


BEGAN = 1_700_000_000.0
DRILL = load("lift_to_distributed")
# What matters of JupyterLab's page: a panel that stays, and in it what scrolls.
PANEL = """
<div class="jp-NotebookPanel" style="position:relative;height:580px">
  <div id="scrolls" style="height:580px;overflow:auto">%s<div style="height:3000px"></div></div>
</div>"""


def clock_of(drill: Drill = DRILL, began: float = BEGAN) -> TickingClock:
    clock = TickingClock(drill)
    clock.began = began
    return clock


def is_in_window(page: Page) -> bool:
    (box,) = [face.bounding_box() for face in page.locator(".rehearsal-clock").all()]
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 600


def wait_for_face(page: Page, where: str) -> None:
    page.wait_for_function(f"document.querySelector('{where} > .rehearsal-clock')")


class TestClock:
    def test_it_shows_the_same_time_as_a_verdict(self, page: Page) -> None:
        """The page is opened again after the kernel has gone, so it counts by itself."""
        from playwright.sync_api import expect

        for seconds in (0, 5, 192, 719, 720, 721, 760, 3599, 3600, 7325, 90_000):
            page.set_content(PANEL % clock_of(began=BEGAN - seconds).running_html())
            wait_for_face(page, "[data-ticks]")
            text = f"{pace(seconds, DRILL.minutes)} {DRILL.id}, running"
            expect(page.locator(".rehearsal-clock")).to_have_text(text)

    def test_it_ticks_and_is_in_the_window_wherever_you_scroll(self, page: Page) -> None:
        """The cell to type in is below the one that starts the clock."""
        page.set_content(PANEL % clock_of().running_html())
        page.clock.run_for(2600)
        assert "0:02 of" in page.locator(".rehearsal-clock").inner_text()
        wait_for_face(page, "[data-rehearsal]")
        page.evaluate("scrolls.scrollTop = 2000")
        wait_for_face(page, ".jp-NotebookPanel")
        assert is_in_window(page)
        page.clock.run_for(60_000)
        assert "1:02 of" in page.locator(".rehearsal-clock").inner_text()
        page.evaluate("scrolls.scrollTop = 0")
        wait_for_face(page, "[data-rehearsal]")
        assert is_in_window(page)

    def test_a_verdict_stops_it_and_takes_it_off_the_corner(self, page: Page) -> None:
        """After a restart of the kernel, nothing else tells the page."""
        page.set_content(PANEL % clock_of().running_html())
        page.evaluate("scrolls.scrollTop = 2000")
        wait_for_face(page, ".jp-NotebookPanel")
        other = stopping("happy_path", BEGAN + 7)
        mine = stopping(DRILL.id, BEGAN + 65)
        for script, state in ((other, "running"), (mine, "stopped")):
            page.evaluate(script.removeprefix("<script>").removesuffix("</script>"))
            assert state in page.locator(".rehearsal-clock").inner_text(), "at once"
            page.clock.run_for(100_000)
            assert state in page.locator(".rehearsal-clock").inner_text()
        assert "1:05 of" in page.locator(".rehearsal-clock").inner_text()
        wait_for_face(page, "[data-rehearsal]")

    def test_of_two_clocks_the_newer_runs(self, page: Page) -> None:
        """Two running clocks would both be wrong."""
        old, new = clock_of(), clock_of(load("happy_path"), BEGAN + 30)
        page.set_content(PANEL % (new.running_html() + old.running_html()))
        page.clock.run_for(60_000)
        texts = page.locator(".rehearsal-clock").all_inner_texts()
        assert ["running" in text for text in texts] == [True, False]
        assert texts[1].startswith("0:30 of")

    def test_a_page_without_scripts_shows_when_it_started(self, page: Page) -> None:
        """JupyterLab runs no scripts in a notebook that somebody else has run."""
        clock = clock_of()
        page.set_content(PANEL % clock.running_html().partition("<script>")[0])
        text = page.locator(".rehearsal-clock").inner_text()
        started = time.strftime("%d %b %H:%M", time.localtime(BEGAN))
        assert text.strip() == f"{DRILL.id}, started {started}, budget 12:00"


def test_a_drill_from_the_start_to_the_pass(lab: str, tmp_path: Path) -> None:
    """Other tests cover the parts; this one covers whether a person sees them."""
    from playwright.sync_api import expect, sync_playwright

    pictures = Path(os.environ.get("REHEARSAL_SCREENSHOTS", tmp_path))
    drill = next(d for d in rehearsal.drills() if d.id == "lift_to_distributed")
    assert drill.blank.count("raise NotImplementedError") == 1
    wrong = drill.blank.replace("raise NotImplementedError", EACH_FOR_ITSELF)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 940, "height": 960})
        outside: list[str] = []
        page.on("request", lambda r: outside.append(r.url) if not is_here(r.url) else None)
        page.goto(lab)
        expect(page.locator(".jp-Notebook")).to_be_visible(timeout=90_000)
        # Before the kernel is there, running a cell would open a dialog.
        expect(page.locator(".jp-StatusBar-Widget", has_text="Idle")).to_be_visible(
            timeout=60_000
        )

        page.keyboard.press("Control+B")  # the list of files takes the width
        setup, begin, blank, check, busy = code_cells(page)
        run(page, setup)
        run(page, begin)
        expect(page.locator(".rehearsal-clock")).to_be_visible(timeout=60_000)
        expect(page.locator("h3", has_text=drill.title)).to_be_visible()

        run(page, blank)
        run(page, check)
        expect(check).to_contain_text("NOT ATTEMPTED", timeout=60_000)

        # Not the kernel's idle loop: a cell is running while the clock is read.
        retype(page, busy, "import time; time.sleep(6)")
        expect(busy.locator(".jp-InputPrompt", has_text="*")).to_be_visible()
        first = seconds_shown(page)
        page.wait_for_function(
            f"""() => {{ const t = document.querySelector('.rehearsal-clock').innerText
                 .match(/(\\d+):(\\d\\d) of/); return 60 * t[1] + 1 * t[2] >= {first + 2} }}""",
            timeout=5_500,
        )
        assert "*" in busy.locator(".jp-InputPrompt").inner_text(), "the kernel was busy"

        retype(page, blank, wrong)
        run(page, check)
        verdict = check.locator(".jp-OutputArea-output", has_text="NOT YET")
        expect(verdict).to_be_visible(timeout=60_000)
        expect(verdict).to_contain_text("ranks-differ")
        expect(check.locator(".jp-OutputArea-output", has_text="NOT YET")).to_have_count(1)
        retype(page, busy, f'hint("{drill.id}")')
        expect(busy).to_contain_text("Hint 1 of 3", timeout=30_000)
        # So low that the running clock, at the bottom of the window, is just below the hint.
        page.set_viewport_size({"width": 940, "height": 950})
        photograph(page, pictures / "wrong.png", blank, page.locator(".rehearsal-clock"))

        retype(page, blank, drill.solution)
        run(page, check)
        expect(check).to_contain_text("PASSED", timeout=60_000)
        expect(page.locator(".rehearsal-clock")).to_contain_text("stopped")
        stopped = seconds_shown(page)
        retype(page, busy, "debrief()")
        expect(busy.locator("img")).to_be_visible(timeout=60_000)
        assert seconds_shown(page) == stopped, "the clock stands after the pass"
        photograph(page, pictures / "passed.png", check, busy)
        browser.close()
    assert outside == [], "nothing leaves the machine"


def test_the_clock_stays_in_view_and_survives_opening_the_notebook_again(
    lab: str, tmp_path: Path
) -> None:
    """In JupyterLab itself, whose panels scroll and whose outputs are trusted or not."""
    from playwright.sync_api import expect, sync_playwright

    pictures = Path(os.environ.get("REHEARSAL_SCREENSHOTS", tmp_path))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 940, "height": 500})
        face, idle = page.locator(".rehearsal-clock"), page.locator(".jp-StatusBar-Widget")
        page.goto(lab)
        expect(idle.filter(has_text="Idle")).to_be_visible(timeout=90_000)
        setup, begin, blank, *_ = code_cells(page)
        run(page, setup)
        run(page, begin)
        expect(face).to_be_visible(timeout=60_000)
        blank.locator(".cm-content").click()
        blank.evaluate("it => it.scrollIntoView({block: 'start'})")
        expect(page.locator(".jp-NotebookPanel > .rehearsal-clock")).to_be_in_viewport()
        page.screenshot(path=pictures / "clock.png")
        before = seconds_shown(page)
        page.keyboard.press("Control+S")
        expect(page.locator(".jp-mod-dirty")).to_have_count(0)
        page.reload()
        expect(face).to_have_text(TICK, timeout=90_000)
        expect(face).to_contain_text("running")
        assert seconds_shown(page) >= before
        browser.close()


MEAN = """\
def mean_over_ranks(value):
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()"""


def test_the_start_notebook_leads_to_a_first_verdict_and_to_a_drill(lab: str) -> None:
    """From there, a link to a folder instead of a file would open an error dialog."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 960})
        page.goto(f"{lab.rpartition('/')[0]}/00_start_here.ipynb")
        expect(page.locator(".jp-StatusBar-Widget", has_text="Idle")).to_be_visible(
            timeout=90_000
        )
        _, _, together, hang, blank, check, plan = (
            page.locator(".jp-CodeCell").nth(place) for place in range(7)
        )
        run(page, together)
        expect(together).to_contain_text("rank 1 of 2 returned 3.0", timeout=60_000)
        run(page, hang)
        expect(hang).to_contain_text("rank 0 of 2 was still waiting", timeout=60_000)
        run(page, blank)
        run(page, check)
        expect(check).to_contain_text("NOT ATTEMPTED", timeout=60_000)
        retype(page, blank, MEAN)
        run(page, check)
        expect(check).to_contain_text("PASSED", timeout=60_000)
        run(page, plan)
        drill = rehearsal.drills()[0]
        plan.locator("a", has_text=drill.title).first.click(timeout=60_000)
        expect(page.locator(".jp-Notebook h1", has_text=drill.title)).to_be_visible(
            timeout=60_000
        )
        browser.close()


def photograph(page: Page, path: Path, first: Locator, last: Locator) -> None:
    """The window, scrolled to ``first`` and cut below ``last``."""
    page.wait_for_timeout(500)  # JupyterLab scrolls to the active cell once more
    first.evaluate("it => it.scrollIntoView({block: 'start'})")
    box = last.bounding_box()
    assert box is not None
    size = page.viewport_size
    assert size is not None
    height = min(size["height"], box["y"] + box["height"] + 12)
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": size["width"], "height": height})


def is_here(url: str) -> bool:
    """Whether a request stays on this machine."""
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


def test_a_card_from_the_question_to_the_grade(lab: str, tmp_path: Path) -> None:
    """Typed, judged, corrected and graded with the mouse, and kept in the history."""
    from playwright.sync_api import expect, sync_playwright

    pictures = Path(os.environ.get("REHEARSAL_SCREENSHOTS", tmp_path))
    address = f"{lab.rpartition('/')[0]}/03_deck.ipynb"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 940, "height": 960})
        page.goto(address)
        expect(page.locator(".jp-StatusBar-Widget").filter(has_text="Idle")).to_be_visible(
            timeout=90_000
        )
        imports, asking = (
            page.locator(".jp-CodeCell").nth(1),
            page.locator(".jp-CodeCell").nth(2),
        )
        run(page, imports)
        retype(page, asking, 'ask("resume_is_correct")')
        field = asking.locator("textarea")
        expect(field).to_be_visible(timeout=60_000)
        assert "How do you know that a resume is correct?" in asking.inner_text()
        assert "A strong answer" not in asking.inner_text()
        field.fill(
            "The optimizer state need not be saved. I kill it and diff with a clean run."
        )
        asking.get_by_role("button", name="Judge it").click()
        marks = asking.locator("select")
        expect(marks).to_have_count(5, timeout=30_000)
        shown = [marks.nth(n).locator("option:checked").inner_text() for n in range(5)]
        assert [mark.split()[1] for mark in shown] == [
            "missed",
            "contradicted",
            "covered",
            "missed",
            "missed",
        ]
        assert "optimizer state need not be saved" in asking.locator("mark").first.inner_text()
        # A link that looks like the text around it is never followed.
        line = "it => getComputedStyle(it).textDecorationLine"
        assert asking.locator("a[target=_blank]").first.evaluate(line) == "underline"
        marks.nth(0).select_option(label="✓ covered")
        page.screenshot(path=pictures / "card.png")
        asking.get_by_role("button", name="hard").click()
        expect(asking.get_by_text("Graded hard: due in")).to_be_visible(timeout=30_000)
        browser.close()
    connection = sqlite3.connect(tmp_path / "rehearsal_home" / "progress.sqlite3")
    rows = connection.execute("SELECT card, grade, points FROM answers").fetchall()
    connection.close()
    ((card, grade, points),) = rows
    assert (card, grade) == ("resume_is_correct", "hard")
    assert json.loads(points)["defines_correct"] == "covered"


def test_a_language_model_draws_nothing_into_the_page(lab: str, tmp_path: Path) -> None:
    """Its words are shown as they are, whatever is in them; and a card's links work."""
    from playwright.sync_api import expect, sync_playwright

    pictures = Path(os.environ.get("REHEARSAL_SCREENSHOTS", tmp_path))
    address = f"{lab.rpartition('/')[0]}/03_deck.ipynb"
    evil = "<img src=x onerror='window.owned = 1'><script>window.owned = 1</script><b>Why?</b>"
    with serving() as stub, sync_playwright() as playwright:
        stub.behaves = examines(evil)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 940, "height": 960})
        page.goto(address)
        expect(page.locator(".jp-StatusBar-Widget").filter(has_text="Idle")).to_be_visible(
            timeout=90_000
        )
        imports, asking = (page.locator(".jp-CodeCell").nth(place) for place in (1, 2))
        run(page, imports)
        setting = f'import os; os.environ["REHEARSAL_LLM_URL"] = "{stub.url}"'
        retype(page, asking, f'{setting}; ask("two_million_spent")')
        expect(asking.locator("textarea")).to_be_visible(timeout=60_000)
        asking.get_by_role("button", name="Ask it in other words").click()
        expect(
            asking.get_by_text(f"In other words, by a language model: {evil}")
        ).to_be_visible(timeout=30_000)
        asking.locator("textarea").fill("The two million are sunk.")
        asking.get_by_role("button", name="Judge it").click()
        expect(asking.get_by_text(f"The language model asks: {evil}")).to_be_visible(
            timeout=30_000
        )
        expect(
            asking.get_by_text("Second opinion, by a language model: ✓").first
        ).to_be_visible()
        page.screenshot(path=pictures / "second_opinion.png")
        assert asking.locator(".jp-OutputArea img, .jp-OutputArea script").count() == 0
        assert asking.locator(".jp-OutputArea b", has_text="Why?").count() == 0
        assert page.evaluate("window.owned") is None

        with page.context.expect_page() as opened:
            asking.get_by_role("link", name="22_hard_questions, When would you stop").click()
        anchor = f"[data-jupyter-id='{opened.value.url.partition('#')[2]}']"
        expect(opened.value.locator(anchor)).to_have_text(
            re.compile("When would you stop a run"), timeout=90_000
        )
        browser.close()


TRAINER = """\
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainConfig:
    run_dir: str
    seed: int = 0


print(TrainConfig("runs"))"""
MARKUP = "How many GPUs do we have? <img src=x onerror=\"document.title='broken'\"> <b>bold</b>"


def test_an_interview_from_the_prompt_to_the_scorecard(lab: str, tmp_path: Path) -> None:
    """Said in the panel, typed in a cell, ended with the mouse; what's typed stays text."""
    from playwright.sync_api import expect, sync_playwright

    pictures = Path(os.environ.get("REHEARSAL_SCREENSHOTS", tmp_path))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 940, "height": 960})
        outside: list[str] = []
        page.on("request", lambda r: outside.append(r.url) if not is_here(r.url) else None)
        page.goto(f"{lab.rpartition('/')[0]}/05_interview.ipynb")
        expect(page.locator(".jp-StatusBar-Widget", has_text="Idle")).to_be_visible(
            timeout=90_000
        )
        page.keyboard.press("Control+B")
        imports, begin, mine = (page.locator(".jp-CodeCell").nth(place) for place in (1, 2, 3))
        run(page, imports)
        retype(page, begin, "held = interview(15, seed=4)\nheld")
        clock = begin.locator(".rehearsal-now")
        expect(clock).to_contain_text("left of 15:00", timeout=60_000)
        expect(begin.locator(".rehearsal-last")).not_to_be_empty(timeout=30_000)
        shown = clock.inner_text()
        expect(clock).not_to_have_text(shown, timeout=10_000)

        begin.locator("textarea").fill(MARKUP)
        begin.get_by_role("button", name="Say").click()
        said = begin.get_by_role("log")
        expect(said).to_contain_text(MARKUP, timeout=30_000)
        expect(begin.locator("textarea")).to_have_value("")
        expect(begin.locator(".rehearsal-last")).to_have_text(
            script_of(4, 15).situation["scale"], timeout=30_000
        )
        page.screenshot(path=pictures / "interview.png")

        retype(page, mine, TRAINER)
        expect(mine).to_contain_text("TrainConfig(run_dir='runs', seed=0)", timeout=60_000)
        expect(said).to_contain_text("You typed TrainConfig (", timeout=30_000)
        mine.evaluate("it => it.scrollIntoView({block: 'start'})")
        pin = page.locator(".jp-NotebookPanel > .rehearsal-pin")
        expect(pin).to_contain_text("left of 15:00", timeout=30_000)
        page.screenshot(path=pictures / "interview_pinned.png")

        begin.get_by_role("button", name="Pause").click()
        expect(clock).to_contain_text("paused", timeout=30_000)
        expect(begin.get_by_role("button", name="Say")).to_be_disabled()
        begin.get_by_role("button", name="Resume").click()
        begin.get_by_role("button", name="End").click()
        begin.get_by_role("button", name="Sure? End").click()
        card = begin.locator(".jp-OutputArea-output", has_text="The three weakest")
        expect(card).to_be_visible(timeout=120_000)
        card.evaluate("it => it.scrollIntoView({block: 'start'})")
        page.screenshot(path=pictures / "interview_scorecard.png")
        assert page.title() != "broken"
        assert begin.locator("img").count() == 0
        chapter = card.locator("a", has_text=re.compile(r"^\d\d_")).first
        chapter.click()
        expect(page.locator(".jp-Notebook h1").last).to_be_visible(timeout=60_000)
        browser.close()
    assert outside == [], "nothing leaves the machine"


def test_an_incident_from_the_page_to_the_debrief(lab: str, tmp_path: Path) -> None:
    """On call in a notebook: what was asked for is drawn, and a fix runs the job again."""
    from playwright.sync_api import expect, sync_playwright

    pictures = Path(os.environ.get("REHEARSAL_SCREENSHOTS", tmp_path))
    seed = next(seed for seed in range(1000) if draw(seed).id == "slow_rank")
    drawn = draw(seed)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 940, "height": 960})
        outside: list[str] = []
        page.on("request", lambda r: outside.append(r.url) if not is_here(r.url) else None)
        page.goto(f"{lab.rpartition('/')[0]}/04_incidents.ipynb")
        expect(page.locator(".jp-StatusBar-Widget").filter(has_text="Idle")).to_be_visible(
            timeout=90_000
        )
        page.keyboard.press("Control+B")
        cells = [page.locator(".jp-CodeCell").nth(place) for place in range(10)]
        _, imports, opens, looks, clock, causes, tells, fixes, ends, keeps = cells

        run(page, imports)
        retype(page, opens, f"case = incident({seed})\ncase")
        expect(opens).to_contain_text("ALERT", timeout=90_000)
        expect(opens).to_contain_text("Throughput")
        photograph(page, pictures / "page.png", opens, opens)

        # What is drawn has axes with units, and is there in both themes.
        wanted = {"throughput": "samples/s", "loss": "nats", "phases": "milliseconds"}
        for source, unit in wanted.items():
            retype(page, looks, f'seen = case.look("{source}")\nseen')
            image = looks.locator(f'img[alt^="{source}"]')
            expect(image).to_be_visible(timeout=60_000)
            assert image.evaluate("it => it.naturalWidth") > 800
            axes = "[f'{a.get_xlabel()}, {a.get_ylabel()}' for a in seen.figure().axes]"
            retype(page, clock, axes)
            expect(clock).to_contain_text(unit, timeout=30_000)
            for scheme in ("dark", "light"):
                page.emulate_media(color_scheme=scheme)
                is_light = str(scheme == "light").lower()
                expect(page.locator("body")).to_have_attribute(
                    "data-jp-theme-light", is_light, timeout=60_000
                )
                photograph(page, pictures / f"{source}-{scheme}.png", looks, looks)
        retype(page, clock, "case.minutes")
        expect(clock.locator(".jp-OutputArea-output")).to_have_text("5", timeout=30_000)

        run(page, causes)
        expect(causes).to_contain_text("slow_rank", timeout=30_000)
        retype(page, looks, 'case.look("heartbeats")')
        expect(looks).to_contain_text(drawn.faulty.placement[1], timeout=30_000)
        because = '["throughput", "phases", "heartbeats"]'
        move = 'first_move="drain the host"'
        retype(page, tells, f'case.diagnose("slow_rank", because={because}, {move})')
        expect(tells).to_contain_text("Noted at minute 6", timeout=30_000)
        retype(page, fixes, 'case.fix(settings={"network": "rail-b"})')
        expect(fixes).to_contain_text("Not fixed", timeout=90_000)
        retype(page, fixes, f"case.fix(settings={dict(drawn.reference.settings)})")
        expect(fixes).to_contain_text("No new symptom", timeout=90_000)
        retype(page, ends, "case.debrief()")
        expect(ends).to_contain_text("7 of 8 points", timeout=30_000)
        expect(ends).to_contain_text("Now write the postmortem")
        photograph(page, pictures / "debrief.png", ends, ends)
        lines = ", ".join(f'{name}="a line"' for name in POSTMORTEM)
        retype(page, keeps, f"case.postmortem({lines})")
        expect(keeps).to_contain_text("Kept in", timeout=30_000)
        browser.close()
    assert outside == [], "nothing leaves the machine"

"""Each picture shows what is in the run folder, and is legible."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from trainer_core.order import EpochOrder
from rehearsal.evidence.cadence import Costs
from rehearsal.evidence.cadence_pictures import interval_picture, limits_picture
from rehearsal.evidence.goodput import account_run
from rehearsal.evidence.goodput_picture import goodput_picture
from rehearsal.evidence.pictures import (
    RANK_COLORS,
    VERMILLION,
    loss_curves,
    phase_bars,
    rank_timeline,
    read_trace_events,
    sample_map,
)
from rehearsal.session.debrief import Row, Try
from rehearsal.session.debrief_picture import picture

Record = dict[str, Any]
PHASES_MS = {
    "data_wait": 0.8,
    "h2d": 0.1,
    "forward": 2.1,
    "backward": 3.9,
    "grad_sync": 1.2,
    "optimizer": 0.9,
    "checkpoint": 0.0,
    "other": 0.3,
}


def append(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


def write_run(
    folder: Path,
    *,
    n: int = 480,
    batch: int = 32,
    epochs: int = 3,
    attempts: tuple[tuple[int, int, int], ...] = ((2, 1, 27), (2, 21, 45)),
    skip: tuple[int, int] = (0, 0),
) -> Path:
    """Each attempt is (world size, first step, last step); the line ``skip`` is left out.

    ``skip`` is (step, rank).
    """
    per_epoch = -(-n // batch)
    folder.mkdir(parents=True)
    identity = {"num_samples": n, "seed": 3, "global_batch_size": batch}
    config = {"identity": identity, "total_steps": epochs * per_epoch}
    (folder / "config.json").write_text(json.dumps(config))
    now = 1000.0
    for attempt, (world_size, first, last) in enumerate(attempts):
        if first > 1:
            restored = {"event": "checkpoint_restored", "attempt": attempt, "step": first - 1}
            append(folder / "logs" / "rank-0.jsonl", {"time": now, "rank": 0, **restored})
        for step in range(first, last + 1):
            epoch, at = divmod(step - 1, per_epoch)
            order = EpochOrder(n, seed=3, epoch=epoch)
            planned = order.samples(at * batch, min((at + 1) * batch, n)).tolist()
            now += 0.012
            for rank in range(world_size):
                write_step(folder, attempt, epoch, step, rank, world_size, now)
                line = {"samples": planned[rank::world_size], "time": now, "step_s": 0.01}
                key = {"attempt": attempt, "epoch": epoch, "step": step, "rank": rank}
                if (step, rank) != skip:
                    record = {**key, "world_size": world_size, **line}
                    append(folder / "ledger" / f"rank-{rank}.jsonl", record)
    for path in folder.glob(
        "traces/*.json"
    ):  # as a kill leaves it: open array, truncated event
        path.write_text("[\n" + path.read_text().replace("}\n", "},\n") + '{"name": "back')
    return folder


def write_step(
    folder: Path, attempt: int, epoch: int, step: int, rank: int, world_size: int, now: float
) -> None:
    """Write a step's progress record and trace; rank 1 loads slowly, rank 0 waits for it."""
    slow = {"data_wait": 3.0, "grad_sync": -1.0} if rank == 1 else {"grad_sync": 1.0}
    times = {name: ms + slow.get(name, 0.0) for name, ms in PHASES_MS.items()}
    phases = {name: {"p50": ms, "p95": 1.6 * ms, "max": 3 * ms} for name, ms in times.items()}
    common = {
        "rank": rank,
        "local_rank": rank,
        "attempt": attempt,
        "step": step,
        "epoch": epoch,
    }
    loss = 2.3 * float(np.exp(-step / 18)) + 0.12 * float(np.sin(step * 1.7)) + 0.2
    record = {"event": "train_progress", "loss": loss, "phases": phases, "time": now}
    append(folder / "logs" / f"rank-{rank}.jsonl", common | record)
    at_us = now * 1e6
    for name, ms in times.items():
        event = {"name": name, "ph": "X", "ts": at_us, "dur": ms * 1e3, "pid": rank, "tid": 0}
        event["args"] = {"step": step, "attempt": attempt}
        append(folder / "traces" / f"rank-{rank}.json", event)
        at_us += ms * 1e3


def pixels_of(figure: Figure) -> np.ndarray[Any, Any]:
    """The picture as it would be saved: (height, width, 3), 0..255."""
    file = io.BytesIO()
    figure.savefig(file, format="rgba")
    pixels = np.frombuffer(file.getvalue(), dtype=np.uint8)
    return pixels.reshape(-1, 1000, 4)[..., :3]


def texts_of(figure: Figure) -> str:
    """All text in a figure, as a reader sees it."""
    pixels_of(figure)  # tick labels get their text only when they are drawn
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return "\n".join(text.get_text() for text in texts if text.get_visible())


def has_ink_of(figure: Figure, color: str) -> bool:
    """Whether any pixel of the drawn figure has the color."""
    wanted = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return bool((pixels_of(figure) == wanted).all(axis=-1).any())


def num_cells(figure: Figure) -> int:
    """The number of boxes in all collections of the sample map."""
    collections = figure.axes[0].collections
    return sum(len(x.get_paths()) for x in collections if type(x).__name__ == "PolyCollection")


def test_the_sample_map_has_one_cell_per_training_of_a_sample(tmp_path: Path) -> None:
    """A missing cell hides a training; an extra one invents it."""
    run = write_run(tmp_path / "run")
    figure = sample_map(run)
    assert num_cells(figure) == 45 * 32 + 7 * 32  # the lineage, plus the lost work
    text = texts_of(figure)
    assert "proved: each sample due by step 45 of 45" in text
    assert "attempt 0 died at step 27:\nthis work was lost and redone" in text
    for words in ("rank 0", "rank 1", "attempt 1", "epoch 2", "optimizer step", "missed: 0"):
        assert words in text
    assert "an attempt died; the framed work was redone" in text
    assert has_ink_of(figure, VERMILLION)


def test_the_sample_map_of_an_uninterrupted_run_shows_no_lost_work(tmp_path: Path) -> None:
    """Vermillion is the color of lost work; a run that lost none must not show any."""
    figure = sample_map(write_run(tmp_path / "run", attempts=((2, 1, 45),)))
    assert num_cells(figure) == 45 * 32
    assert not has_ink_of(figure, VERMILLION)


def test_the_sample_map_marks_what_was_missed(tmp_path: Path) -> None:
    """A gap is easy to overlook; a mark with a count is not."""
    figure = sample_map(write_run(tmp_path / "run", skip=(5, 1)))
    assert "refuted" in texts_of(figure)
    assert "missed: 16" in texts_of(figure)
    marks = [x for x in figure.axes[0].collections if x.get_label() == "missed: 16"]
    offsets = np.asarray(marks[0].get_offsets())
    assert set(offsets[:, 0]) == {5.0}
    assert offsets[:, 1].min() > 0.5  # in the upper half, where rank 1's share is


def test_the_sample_map_labels_the_ranks_of_both_world_sizes(tmp_path: Path) -> None:
    """After an elastic restart, the labels on the left are wrong for the right-hand side."""
    figure = sample_map(write_run(tmp_path / "run", attempts=((2, 1, 27), (3, 21, 45))))
    assert texts_of(figure).count("rank 0") == 2
    assert texts_of(figure).count("rank 2") == 1


def test_the_sample_map_of_a_long_run_says_which_steps_it_draws(tmp_path: Path) -> None:
    """A picture that skips steps without saying so claims more than it shows."""
    attempts = ((2, 1, 800), (2, 751, 1500))
    run = write_run(tmp_path / "run", n=8000, batch=16, attempts=attempts, skip=(1402, 0))
    figure = sample_map(run)
    assert num_cells(figure) < 2000
    assert "Shown: 1 step in 3, all findings." in texts_of(figure)
    assert "missed: 8" in texts_of(figure)


def test_a_folder_without_evidence_has_no_picture(tmp_path: Path) -> None:
    """An empty picture looks like a run in which nothing happened."""
    with pytest.raises(ValueError, match=r"config\.json: unusable"):
        sample_map(tmp_path)
    for draw in (phase_bars, rank_timeline):
        with pytest.raises(ValueError, match="nothing to draw"):
            draw(tmp_path)
    with pytest.raises(ValueError, match=r"no train_progress in logs/rank-0\.jsonl"):
        loss_curves({"run": tmp_path})


def test_loss_curves_say_how_far_two_runs_differ(tmp_path: Path) -> None:
    """Two curves that look identical may differ in the sixth digit."""
    straight = write_run(tmp_path / "straight", attempts=((2, 1, 45),))
    resumed = write_run(tmp_path / "resumed")
    figure = loss_curves({"straight": straight, "resumed": resumed})
    text = texts_of(figure)
    assert "Largest difference over 45 logged steps: 0 (every logged digit agrees)" in text
    labels = [line.get_label() for line in figure.axes[0].get_lines()]
    assert labels[:2] == ["straight", "resumed, attempt 0"]
    append(
        straight / "logs" / "rank-0.jsonl",
        {"event": "train_progress", "rank": 0, "attempt": 0, "step": 45, "loss": 9.0},
    )
    assert "every logged digit agrees" not in texts_of(
        loss_curves({"a": straight, "b": resumed})
    )


def test_loss_curves_mark_the_checkpoint_that_a_restart_resumed_from(tmp_path: Path) -> None:
    """The first logged loss may come many steps later; the sample map shows the true step."""
    run = write_run(tmp_path / "run")
    logs = run / "logs" / "rank-0.jsonl"
    sparse = [x for x in logs.read_text().splitlines() if json.loads(x)["step"] % 10 == 5]
    restored = [x for x in logs.read_text().splitlines() if "checkpoint_restored" in x]
    logs.write_text("\n".join(sparse + restored))
    figure = loss_curves({"run": run})
    assert "run, attempt 1: resumes after step 20" in texts_of(figure)
    dotted = [x for x in figure.axes[0].get_lines() if x.get_color() == VERMILLION]
    assert [list(np.asarray(line.get_xdata())) for line in dotted] == [[20, 20]]


def test_a_nonfinite_loss_leaves_a_gap(tmp_path: Path) -> None:
    """JSON has no NaN; a null must neither crash the picture nor show up as zero."""
    run = write_run(tmp_path / "run", attempts=((1, 1, 5),))
    record = {"event": "train_progress", "rank": 0, "attempt": 0, "step": 6, "loss": None}
    append(run / "logs" / "rank-0.jsonl", record)
    (line,) = loss_curves({"run": run}).axes[0].get_lines()
    assert np.isnan(line.get_ydata()[-1])  # type: ignore[index]


def drawn_ms(figure: Figure, rank: int) -> list[list[float]]:
    """What the phase picture shows of a rank: [p50, p95, max] per phase, top to bottom."""
    lines = [x for x in figure.axes[0].get_lines() if x.get_color() == RANK_COLORS[rank]]
    lines = [x for x in lines if x.get_label() != f"rank {rank}"]
    rows = np.concatenate([np.asarray(x.get_xdata(), dtype=float) for x in lines])
    return rows.reshape(-1, 4)[:, :3].tolist()  # a line, a tick, and the p50 once more


def test_phase_bars_show_each_phase_and_no_sum(tmp_path: Path) -> None:
    """A sum of p95s is the p95 of nothing: the phases are not slow in the same step."""
    figure = phase_bars(write_run(tmp_path / "run"))
    text = texts_of(figure)
    for words in (*PHASES_MS, "rank 0", "rank 1", "milliseconds per step", "p50", "p95", "max"):
        assert words in text
    shown = [drawn_ms(figure, rank) for rank in (0, 1)]
    for name, (p50, p95, slowest) in zip(PHASES_MS, shown[1], strict=True):
        ms = PHASES_MS[name] + {"data_wait": 3.0, "grad_sync": -1.0}.get(name, 0.0)
        assert (p50, p95, slowest) == pytest.approx((ms, 1.6 * ms, 3 * ms))
    grad_sync = list(PHASES_MS).index("grad_sync")
    assert shown[0][grad_sync][0] == pytest.approx(2.2)  # rank 0 waits for rank 1
    assert f"{sum(p95 for _, p95, _ in shown[1]):.3g}" not in text


def test_phase_bars_show_a_phase_a_thousandth_as_long_as_the_slowest(tmp_path: Path) -> None:
    """On a linear scale, a copy of 0.02 ms is less than a pixel next to a save."""
    run = write_run(tmp_path / "run", attempts=((1, 1, 5),))
    phases = {"h2d": {"p50": 0.02, "p95": 0.03, "max": 0.04}}
    phases["checkpoint"] = {"p50": 0.0, "p95": 0.0, "max": 2000.0}
    key = {"rank": 0, "attempt": 0, "step": 6}
    append(run / "logs" / "rank-0.jsonl", {"event": "train_progress", **key, "phases": phases})
    figure = phase_bars(run)
    pixels_of(figure)
    axes = figure.axes[0]
    left, h2d, slowest = axes.transData.transform([(0, 0), (0.02, 0), (2000, 0)])[:, 0]
    assert h2d - left > 50
    assert slowest <= axes.transAxes.transform((1, 0))[0]
    assert drawn_ms(figure, 0)[1] == [0.0, 0.0, 2000.0]  # only the max shows a rare save


def test_phase_bars_leave_out_ranks_that_the_newest_attempt_lacks(tmp_path: Path) -> None:
    """The logs still have the last record of a rank that is gone."""
    text = texts_of(phase_bars(write_run(tmp_path / "run", attempts=((3, 1, 9), (2, 5, 12)))))
    assert "rank 1" in text
    assert "rank 2" not in text


def test_the_timeline_shows_the_last_steps_of_the_attempt_that_counts(tmp_path: Path) -> None:
    """A step that was trained twice has two traces, and the first is lost work."""
    run = write_run(tmp_path / "run", attempts=((2, 1, 9), (2, 5, 8)))
    text = texts_of(rank_timeline(run, first_step=7, num_steps=2))
    assert "What each rank did in steps 7 to 8" in text
    numbers = [x.get_text() for x in rank_timeline(run, first_step=7).findobj(Text)]
    assert numbers.count("7") == 2  # one line per rank
    figure = rank_timeline(run, first_step=7, num_steps=1)
    bars = [patch.get_x() for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert len(bars) == 2 * len(PHASES_MS)
    assert max(bars) < 20.0  # in ms: the other attempt's bars would be seconds away
    widths = [x.get_width() for x in figure.axes[0].patches if isinstance(x, Rectangle)]
    assert widths.count(0.0) == 2, "no checkpoint was saved"
    assert min(filter(None, widths)) >= 0.002 * (max(bars) + 0.3), (
        "even the shortest phase can be seen"
    )
    with pytest.raises(ValueError, match="no step 70 to 71 in traces/"):
        rank_timeline(run, first_step=70, num_steps=2)


def test_a_trace_that_a_kill_truncated_is_read_up_to_that_point(tmp_path: Path) -> None:
    """The closing bracket is the first thing that a kill costs."""
    event = {"name": "h2d", "ph": "X", "ts": 1, "dur": 2, "pid": 0, "tid": 0}
    event |= {"args": {"step": 1, "attempt": 0}}
    text = json.dumps(event)
    path = tmp_path / "rank-0.json"
    for content in (
        f"[{text}]",
        f"[{text},",
        f"[\n{text},\n{text[:-30]}",
        f"[{text},{text[:20]}",
    ):
        path.write_text(content)
        assert read_trace_events(path) == [event]
    path.write_text(f"[\n{text},\n{text[:-30]}\n,{text}\n]")  # the next attempt appended to it
    assert read_trace_events(path) == [event, event]


def legible_texts(figure: Figure) -> list[tuple[str, Any, Any]]:
    """Each text that is drawn: its words, its color, and where it is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        box = text.get_window_extent(canvas.get_renderer())
        is_in_picture = box.x0 >= 0 and box.x1 <= 1001 and box.y0 >= 0
        is_drawn = text.get_visible() and text.get_text().strip() and is_in_picture
        if is_drawn and text not in hidden_ticks(figure):
            found.append((text.get_text(), text.get_color(), box))
    return found


def hidden_ticks(figure: Figure) -> list[Text]:
    """The labels of ticks beyond the limits of their axis, which matplotlib doesn't draw."""
    hidden = []
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted((low, high))
            ticks = axis.get_major_ticks()
            hidden += [t.label1 for t in ticks if not low <= t.get_loc() <= high]
    return hidden


def contrast(color: Any, background: Any) -> float:
    """As WCAG defines it: 1 to 21; 3 is the least for large text, 4.5 is good for any."""
    from matplotlib.colors import to_rgb

    def light(rgb: tuple[float, ...]) -> float:
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    dark, bright = sorted((light(to_rgb(color)), light(to_rgb(background))))
    return bright / dark


def every_picture(folder: Path) -> dict[str, Figure]:
    """All pictures, of runs that crowd them."""
    run = write_run(folder / "run")
    five = ((2, 1, 9), (3, 5, 14), (4, 11, 26), (2, 21, 30), (3, 28, 45))
    many = write_run(folder / "many", attempts=five, skip=(5, 1))
    long = write_run(folder / "long", n=8000, batch=16, attempts=((2, 1, 80), (2, 71, 1500)))
    costs = Costs(save_s=30, restart_s=200, mtbf_s=8 * 3600)
    tries = [Try(200, "wrong", "no-all-reduce", ""), Try(800, "passed", "", "")]
    rows = [
        Row("lift", 720, 800, tries, [300], "passed"),
        Row("a", 1200, 300, tries[:1], [], ""),
    ]
    return {
        "map": sample_map(run),
        "map of many": sample_map(many),
        "long map": sample_map(long),
        "losses": loss_curves({"a": run, "b": many}),
        "phases": phase_bars(many),
        "timeline": rank_timeline(run),
        "long timeline": rank_timeline(long, first_step=990, num_steps=40),
        "goodput": goodput_picture(account_run(many)),
        "interval": interval_picture(costs, step_s=1.0),
        "limits": limits_picture(30, 200),
        "debrief": picture(rows),
    }


def test_every_picture_is_as_legible_on_black_as_on_white(tmp_path: Path) -> None:
    """A white sheet in a dark notebook dazzles, and black words on it would be invisible."""
    for name, figure in every_picture(tmp_path).items():
        file = io.BytesIO()
        figure.savefig(file, format="rgba")
        alpha = np.frombuffer(file.getvalue(), dtype=np.uint8).reshape(-1, 1000, 4)[..., 3]
        assert (alpha == 0).mean() > 0.2, f"{name}: the page shows through"
        for words, color, _ in legible_texts(figure):
            for theme in ("#FFFFFF", "#111111"):
                assert contrast(color, theme) >= 3.8, (name, words, color, theme)


def test_no_label_covers_another(tmp_path: Path) -> None:
    """Step numbers of four digits ran into each other."""
    for name, figure in every_picture(tmp_path).items():
        texts = legible_texts(figure)
        assert len(texts) > 10, name
        for (one, _, a), (two, _, b) in itertools.combinations(texts, 2):
            width = min(a.x1, b.x1) - max(a.x0, b.x0)
            height = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert min(width, height) <= 1, f"{name}: {one!r} covers {two!r}"


def test_no_line_of_the_timeline_crosses_a_number(tmp_path: Path) -> None:
    """The line of the next step made 1001 look like 100 and a bar."""
    run = write_run(tmp_path / "run", n=8000, batch=16, attempts=((2, 1, 1040),))
    figure = rank_timeline(run, first_step=990, num_steps=40)
    numbers = [(text, box) for text, _, box in legible_texts(figure) if len(text) == 4]
    assert "1028" in {text for text, _ in numbers}
    for line in figure.axes[0].get_lines():
        box = line.get_window_extent()
        for text, number in numbers:
            is_level = box.y0 < number.y1 - 1 and box.y1 > number.y0 + 1
            assert not (is_level and number.x0 + 1 < box.x0 < number.x1), text


def test_every_picture_is_1000_pixels_wide_and_closed_in_pyplot(tmp_path: Path) -> None:
    """A notebook shows a figure that stays open a second time, and never frees it."""
    from matplotlib import pyplot

    run = write_run(tmp_path / "run")
    for figure in (
        sample_map(run),
        loss_curves({"run": run}),
        phase_bars(run),
        rank_timeline(run),
    ):
        assert isinstance(figure, Figure)
        assert pixels_of(figure).shape[1] == 1000
        assert figure.get_size_inches()[0] * figure.dpi == 1000
    assert pyplot.get_fignums() == []

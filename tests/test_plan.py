"""The day's plan: what it promises for any history, date and number of minutes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal import cards, drills
from rehearsal.interviews.rubric import RUBRIC
from rehearsal.plan.agenda import plan_of
from rehearsal.plan.due import INCIDENT_DAYS, INTERVIEW_DAYS, SHORT_MINUTES
from rehearsal.plan.new import is_open, ordered_steps
from rehearsal.plan.route import (
    LAST_HOUR,
    PAGES,
    ROUTE,
    Step,
    UnknownPage,
    page_named,
    route_of,
)
from rehearsal.plan.work import (
    FINAL_DAYS,
    BegunState,
    CardState,
    DrillState,
    Item,
    Plan,
    WeakRow,
    Work,
)

ROOT = Path(__file__).resolve().parents[1]
TODAY = date(2026, 11, 23)
TOPICS = ("data", "recovery", "numbers", "mine")
REAL = tuple((drill.id, drill.minutes) for drill in drills())
DECK = tuple((card.id, card.topic) for card in cards())


def days(low: int, high: int) -> st.SearchStrategy[date | None]:
    """No day, or one so many days from today."""
    return st.none() | st.integers(low, high).map(lambda n: TODAY + timedelta(days=n))


@st.composite
def works(draw: st.DrawFn, *, any_date: bool = True) -> Work:
    """Any state in which a person may ask for a plan."""
    ids = [f"drill_{n}" for n in range(draw(st.integers(0, 9)))]
    of_drills = []
    for name in ids:
        minutes = float(draw(st.integers(5, 50)))
        due = draw(days(-30, 20))
        last = (
            None if due is None else min(TODAY, due) - timedelta(days=draw(st.integers(0, 3)))
        )
        is_passed = due is not None and draw(st.booleans())
        of_drills.append(DrillState(name, minutes, due, last, is_passed))
    of_cards = [
        CardState(f"card_{n}", draw(st.sampled_from(TOPICS)), draw(days(-30, 20)))
        for n in range(draw(st.integers(0, 40)))
    ]
    steps = st.sampled_from(route_of(ids, TOPICS))
    weak = [
        WeakRow(f"row {n}", 1.0 + n / 10, draw(st.lists(steps, max_size=4)))
        for n in range(draw(st.integers(0, 3)))
    ]
    read = draw(st.lists(st.sampled_from(sorted(PAGES)), unique=True))
    return Work(
        today=TODAY,
        minutes=draw(st.integers(10, 240)),
        interview=draw(days(-5, 40)) if any_date else None,
        first_day=draw(days(-30, 0)),
        spent=draw(st.sampled_from([0.0, 0.0, 7.5, 60.0, 300.0])) if any_date else 0.0,
        drills=of_drills,
        cards=of_cards,
        card_minutes=draw(st.floats(0.5, 5.5)),
        read={name: TODAY - timedelta(days=draw(st.integers(0, 9))) for name in read},
        route=route_of(ids, TOPICS),
        weak=weak,
        last_incident=draw(days(-9, 0)),
        last_interview=draw(days(-9, 0)),
        begun=draw(
            st.none() | st.builds(BegunState, days(-9, 0).filter(bool), st.floats(0, 60))
        ),
    )


def done(work: Work, plan: Plan) -> Work:
    """The next day, after all of the plan was done; what is known lasts longer and longer."""
    again = work.today + timedelta(days=3 + (work.today - TODAY).days // 2)
    keys = {item.key for item in plan.items}
    of_drills = [
        drill._replace(due=again, last=work.today, is_passed=True)
        if ("drill", drill.id) in keys
        else drill
        for drill in work.drills
    ]
    of_cards = list(work.cards)
    for item in plan.items:
        if item.kind == "cards":
            asked = cards_of(replace(work, cards=of_cards), item)
            of_cards = [c._replace(due=again) if c in asked else c for c in of_cards]
    pages = {i.name: work.today for i in plan.items if i.kind == "page"}
    kinds = {item.kind for item in plan.items}
    return replace(
        work,
        today=work.today + timedelta(days=1),
        first_day=work.first_day or work.today,
        drills=of_drills,
        cards=of_cards,
        read={**work.read, **pages},
        last_incident=work.today if "incident" in kinds else work.last_incident,
        last_interview=work.today if "interview" in kinds else work.last_interview,
        begun=None if "interview" in kinds else work.begun,
    )


def cards_of(work: Work, item: Item) -> list[CardState]:
    """The cards that ``ask`` asks for an item: due ones, oldest first, then new ones."""
    due = [card for card in work.cards if card.due is not None and card.due <= work.today]
    if not item.name:
        return sorted(due, key=lambda card: card.due or TODAY)[: item.cards]
    return [c for c in work.cards if c.due is None and c.topic == item.name][: item.cards]


def beginner(**facts: object) -> Work:
    """Somebody without a history, and all that the package has."""
    return replace(
        Work(
            today=TODAY,
            minutes=90,
            drills=[DrillState(name, minutes) for name, minutes in REAL],
            cards=[CardState(name, topic) for name, topic in DECK],
            card_minutes=1.5,
            route=route_of([name for name, _ in REAL], dict.fromkeys(t for _, t in DECK)),
        ),
        **facts,  # type: ignore[arg-type]
    )


class TestAnyPlan:
    @given(works())
    def test_it_fits_the_minutes_that_are_left(self, work: Work) -> None:
        """A plan that can't be done in a day is a wish list, and nobody trusts it twice."""
        plan = plan_of(work)
        left = max(0.0, work.minutes - work.spent)
        is_alone = len(plan.items) == 1 and not work.spent
        assert plan.minutes <= left or is_alone or work.days_left == 0
        assert all(item.minutes > 0 and item.why for item in plan.items)

    @given(works())
    def test_it_lists_nothing_twice(self, work: Work) -> None:
        """A drill that is due and also practices the weakest row is still one drill."""
        plan = plan_of(work)
        keys = [item.key for item in plan.items]
        assert len(keys) == len(set(keys))
        asked = [card for item in plan.items for card in cards_of(work, item)]
        assert len(asked) == len(set(asked)) == sum(item.cards for item in plan.items)
        assert sum(item.kind in ("incident", "interview") for item in plan.items) <= 1

    @settings(max_examples=30)
    @given(works(any_date=False))
    def test_whatever_is_due_comes_up(self, work: Work) -> None:
        """A review that other reviews push out every day is forgotten, and so is its topic."""
        waiting = {c.id for c in work.cards if c.due and c.due <= TODAY}
        waiting |= {d.id for d in work.drills if d.due and d.due <= TODAY}
        waiting |= {"incident", "interview"}
        # With ten minutes a day, 36 days pass from one interview to the next.
        for _ in range(45 + 3 * len(waiting)):
            plan = plan_of(work)
            for item in plan.items:
                waiting -= {item.name, item.kind, *(c.id for c in cards_of(work, item))}
            work = done(work, plan)
        assert waiting == set()

    @settings(max_examples=30)
    @given(works(any_date=False))
    def test_all_that_is_new_comes_up(self, work: Work) -> None:
        """A long chapter, or a drill that is longer than a day, would end the route."""
        for _ in range(400):
            if not (steps := [step for step in work.route if is_open(work, step)]):
                break
            work = done(work, plan_of(work))
        assert steps == []

    @given(works())
    def test_the_last_days_have_nothing_new(self, work: Work) -> None:
        """The night before, a new chapter replaces sleep and shakes what was firm."""
        near = replace(work, interview=TODAY + timedelta(days=1))
        for item in plan_of(near).items:
            assert item.kind not in ("incident", "interview")
            if item.kind == "drill" and not near.is_beginner:
                drill = next(d for d in near.drills if d.id == item.name)
                assert drill.due is not None
                assert drill.minutes <= SHORT_MINUTES
            if item.kind == "page" and not near.is_beginner:
                assert item.name == LAST_HOUR
            if item.kind == "cards" and not near.is_beginner:
                assert item.is_due

    @given(works())
    def test_on_the_day_itself_there_is_one_page_at_most(self, work: Work) -> None:
        """Whoever crams until the call starts it tired."""
        plan = plan_of(replace(work, interview=TODAY))
        assert {item.key for item in plan.items} <= {("page", LAST_HOUR)}

    @given(works())
    def test_what_was_not_fit_is_counted(self, work: Work) -> None:
        """The line "3 due" above a table with one of them must say where the others are."""
        plan = plan_of(work)
        listed = [item for item in plan.items if item.is_due]
        assert sum(item.cards for item in listed) <= plan.due_cards
        assert sum(item.kind == "drill" for item in listed) <= plan.due_drills


class TestAFirstDay:
    def test_it_begins_with_the_map_and_the_trainer(self) -> None:
        """The order of the drills' numbers would begin with typing what nobody explained."""
        plan = plan_of(beginner())
        assert [item.key for item in plan.items] == [
            ("page", "10_interview_map"),
            ("cards", "interview"),
            ("page", "01_live"),
        ]
        assert 60 <= plan.minutes <= 90
        assert (plan.due_cards, plan.due_drills, plan.too_much) == (0, 0, None)

    def test_with_two_days_left_it_has_the_essentials(self) -> None:
        """ "Nothing new in the last days" would leave a beginner with an empty plan."""
        plan = plan_of(beginner(interview=TODAY + timedelta(days=2)))
        assert {("page", "10_interview_map"), ("page", LAST_HOUR)} <= {
            i.key for i in plan.items
        }
        assert plan.too_much is not None
        assert plan.too_much.minutes_a_day == 0

    def test_a_small_day_still_begins_the_first_chapter(self) -> None:
        """A quarter of an hour a day is what many people have."""
        plan = plan_of(beginner(minutes=15))
        (item,) = plan.items
        assert (item.key, item.minutes) == (("page", "10_interview_map"), 15)
        assert "over several days" in item.why


class TestTheDaysUntilTheInterview:
    def lived(self, num_days: int, **facts: object) -> list[Plan]:
        """The plans of all days from today to the interview, each of them done."""
        work, plans = beginner(interview=TODAY + timedelta(days=num_days), **facts), []
        for _ in range(num_days + 1):
            plans.append(plan_of(work))
            work = done(work, plans[-1])
        return plans

    def test_mock_interviews_have_a_baseline_and_a_rhythm(self) -> None:
        """Without a baseline nobody knows what to work on; one a day leaves no time for it."""
        plans = self.lived(14)
        at = [n for n, p in enumerate(plans) if any(i.kind == "interview" for i in p.items)]
        assert at[0] <= 3
        assert 3 <= len(at) <= 4
        assert all(INTERVIEW_DAYS <= b - a <= INTERVIEW_DAYS + 2 for a, b in pairwise(at))
        assert at[-1] < 14 - FINAL_DAYS

    def test_an_incident_comes_every_second_or_third_day(self) -> None:
        """Debugging is a round of its own, and fades like a language."""
        plans = self.lived(14)
        at = [n for n, p in enumerate(plans) if any(i.kind == "incident" for i in p.items)]
        assert all(INCIDENT_DAYS <= b - a <= INCIDENT_DAYS + 1 for a, b in pairwise(at))
        assert len(at) >= 4
        assert at[-1] < 14 - FINAL_DAYS

    def test_a_short_notice_has_its_baseline_on_the_first_day(self) -> None:
        """On the third day of five there would be no time left to act on it."""
        assert any(item.kind == "interview" for item in self.lived(5)[0].items)

    @pytest.mark.parametrize(
        ("num_days", "minutes"), [(4, 90), (10, 30), (10, 90), (15, 150), (20, 60), (20, 90)]
    )
    def test_what_fits_is_done_in_time_and_what_does_not_is_named(
        self, num_days: int, minutes: int
    ) -> None:
        """A plan that promises 23 hours in ten evenings breaks on the ninth."""
        work = beginner(interview=TODAY + timedelta(days=num_days), minutes=minutes)
        much = plan_of(work).too_much
        assert much is not None
        assert much.need_minutes > much.room_minutes
        plans = self.lived(num_days, minutes=minutes)
        seen = {item.key for plan in plans for item in plan.items}
        promised = [step for step in ordered_steps(work)[0] if step not in much.steps]
        missed = [step for step in promised if step[:2] not in seen]
        assert missed == []
        assert much.steps

    def test_the_minutes_it_asks_for_are_enough(self) -> None:
        """Somebody who follows the advice must not be told that it isn't enough."""
        work = beginner(interview=TODAY + timedelta(days=30))
        much = plan_of(work).too_much
        assert much is not None
        enough = plan_of(replace(work, minutes=much.minutes_a_day))
        assert enough.too_much is None
        assert plan_of(replace(work, minutes=much.minutes_a_day - 5)).too_much is not None

    def test_with_enough_days_the_order_is_the_routes(self) -> None:
        """What is essential jumps the queue only if time is short."""
        steps, much = ordered_steps(beginner(interview=TODAY + timedelta(days=200)))
        assert much is None
        assert steps == list(beginner().route)
        short, _ = ordered_steps(beginner(interview=TODAY + timedelta(days=5)))
        assert [s.is_essential for s in short] == sorted(s.is_essential for s in short)[::-1]

    def test_the_last_hour_is_listed_until_it_is_read(self) -> None:
        """Somebody who has read it yesterday needs the time for something else."""
        work = beginner(interview=TODAY + timedelta(days=2), read={"10_interview_map": TODAY})
        keys = {item.key for item in plan_of(work).items}
        assert ("page", LAST_HOUR) in keys
        read = replace(work, read={LAST_HOUR: TODAY})
        assert ("page", LAST_HOUR) not in {item.key for item in plan_of(read).items}
        on_the_day = replace(work, today=TODAY + timedelta(days=2), read={LAST_HOUR: TODAY})
        assert [item.name for item in plan_of(on_the_day).items] == [LAST_HOUR]

    def test_a_date_in_the_past_is_no_deadline(self) -> None:
        """The week after the interview, everything would count as too late."""
        past = beginner(interview=TODAY - timedelta(days=1))
        assert plan_of(past) == plan_of(beginner())


class TestADay:
    def test_the_oldest_review_is_always_there(self) -> None:
        """A drill of 45 minutes would wait behind small things for as long as there are any."""
        long = DrillState("long", 45, TODAY - timedelta(days=9), TODAY, True)
        small = [DrillState(f"small_{n}", 8, TODAY, TODAY, True) for n in range(9)]
        plan = plan_of(beginner(minutes=60, drills=[*small, long]))
        assert ("drill", "long") in {item.key for item in plan.items}

    def test_a_pile_of_cards_leaves_room_for_drills_and_for_the_new(self) -> None:
        """After a week off, three evenings of nothing but cards make people give up."""
        due = TODAY - timedelta(days=5)
        pile = [CardState(name, topic, due) for name, topic in DECK[:200]]
        late = DrillState("happy_path", 15, TODAY, TODAY, True)
        others = [DrillState(name, m) for name, m in REAL if name != "happy_path"]
        plan = plan_of(beginner(cards=[*pile], drills=[late, *others]))
        keys = [item.key for item in plan.items]
        assert keys[:2] == [("cards", ""), ("drill", "happy_path")]
        assert ("page", "10_interview_map") in keys
        assert plan.due_cards == 200

    def test_a_drill_longer_than_the_day_comes_alone_every_other_day(self) -> None:
        """Somebody with half an hour would never see it, or never see anything else."""
        late = DrillState("live_trainer", 45, TODAY - timedelta(days=9), TODAY, True)
        pile = [CardState(name, topic, TODAY) for name, topic in DECK[:50]]
        seen = []
        for n in range(4):
            work = beginner(minutes=30, drills=[late], cards=pile, today=TODAY + timedelta(n))
            seen.append([item.key for item in plan_of(work).items])
        alone = [("drill", "live_trainer")]
        assert seen.count(alone) == 2
        assert seen[0] != seen[1]
        assert all(keys == alone or keys[0] == ("cards", "") for keys in seen)

    def test_a_drill_that_is_due_is_not_new_as_well(self) -> None:
        """Listed as new, it would be missing from what is due."""
        due = DrillState("happy_path", 15, TODAY, TODAY)
        weak = [WeakRow("builds a correct core", 1.5, [Step("drill", "happy_path")])]
        plan = plan_of(beginner(drills=[due], weak=weak))
        (item,) = [item for item in plan.items if item.kind == "drill"]
        assert item.is_due

    @pytest.mark.parametrize("day", [TODAY, TODAY + timedelta(days=1)])
    def test_a_drill_longer_than_the_day_does_not_stop_the_route(self, day: date) -> None:
        """Everything after it would wait for an evening that somebody doesn't have."""
        steps = [Step("page", "10_interview_map"), Step("drill", "live_trainer")]
        steps.append(Step("page", "12_data_correctness"))
        long = DrillState("live_trainer", 52)
        plan = plan_of(beginner(today=day, minutes=50, drills=[long], route=steps))
        assert [item.name for item in plan.items] == ["10_interview_map", "12_data_correctness"]

    def test_what_was_done_today_makes_the_rest_smaller(self) -> None:
        """Each look at the plan would ask for another 90 minutes."""
        assert plan_of(beginner(spent=70.0)).minutes <= 20
        assert plan_of(beginner(spent=90.0)).items == []

    def test_the_weakest_row_comes_before_new_material(self) -> None:
        """What an interviewer marked as weak is the best use of the next hour."""
        steps = [Step("page", "13_checkpointing"), Step("drill", "resume_after_failure")]
        weak = [WeakRow("builds a correct core", 1.5, steps)]
        (first, *_) = plan_of(beginner(weak=weak)).items
        assert first.key == ("page", "13_checkpointing")
        assert first.why == "weak in the rubric, 1.5 of 4: builds a correct core"
        read = {"13_checkpointing": TODAY}
        (first, *_) = plan_of(beginner(weak=weak, read=read)).items
        assert first.key == ("drill", "resume_after_failure")

    def test_if_all_is_done_it_says_one_useful_thing(self) -> None:
        """An empty page is no plan, and ten suggestions are none either."""
        far = TODAY + timedelta(days=9)
        finished = [
            DrillState(name, minutes, far, TODAY - timedelta(days=n), True)
            for n, (name, minutes) in enumerate(REAL)
        ]
        work = beginner(
            drills=finished,
            cards=[CardState(name, topic, far) for name, topic in DECK],
            read=dict.fromkeys(PAGES, TODAY),
            last_incident=TODAY,
            last_interview=TODAY,
        )
        (item,) = plan_of(work).items
        assert item.key == ("drill", REAL[-1][0])
        assert "keep it warm" in item.why
        (item,) = plan_of(replace(work, drills=[])).items
        assert item.kind == "incident"


def notebook(place: str) -> str:
    """The Markdown of a notebook."""
    text = (ROOT / "notebooks" / place).read_text("utf-8")
    found = [c for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"]
    return " ".join("".join("".join(cell["source"]) for cell in found).split())


class TestTheRoute:
    def test_every_step_exists_and_is_there_once(self) -> None:
        """A renamed drill or topic would silently leave every plan."""
        names: Mapping[str, set[str]] = {
            "page": set(PAGES),
            "drill": {name for name, _ in REAL},
            "cards": {topic for _, topic in DECK},
        }
        assert [step for step in ROUTE if step.name not in names[step.kind]] == []
        route = route_of(*([name for name, _ in REAL], dict.fromkeys(t for _, t in DECK)))
        keys = [step[:2] for step in route]
        assert len(keys) == len(set(keys))
        assert {name for kind, name in keys if kind == "drill"} == names["drill"]
        assert {name for kind, name in keys if kind == "cards"} == names["cards"]
        assert {name for kind, name in keys if kind == "page"} == names["page"] - {LAST_HOUR}

    def test_every_chapter_is_a_page_with_the_minutes_that_it_promises(self) -> None:
        """A plan of 90 minutes with chapters that take twice as long is no plan."""
        here = {path.stem for path in (ROOT / "notebooks/handbook").glob("*.ipynb")}
        assert here == {name for name in PAGES if not name.startswith("01")}
        ones = "zero one two three four five".split()
        words = {20: "Twenty", 35: "Thirty-five"} | {
            n: f"Twenty-{ones[n - 20]}" for n in (22, 23, 25)
        }
        for name in sorted(here - {LAST_HOUR}):
            text = notebook(PAGES[name].notebook)
            assert f"*{words[PAGES[name].minutes]} minutes to read" in text, name
            title = re.sub(r" \(chapter \d+\)", "", PAGES[name].title).split(" and ")[0]
            assert title.lower() in text[:200].lower(), name

    def test_chapters_and_drills_come_in_the_order_of_chapter_10(self) -> None:
        """Two routes that disagree are worse than none."""
        source = (ROOT / "notebooks/src/handbook/10_interview_map.py").read_text("utf-8")
        steps = re.search(r"^ROUTE = \{(.*?)^\}", source, re.MULTILINE | re.DOTALL)
        assert steps is not None
        theirs = re.findall(r'"(\w+)"', re.sub(r'"[\w ,]+": ', "", steps[1]))
        ours = [step.name for step in ROUTE if step.kind == "drill" and step.name in theirs]
        assert ours == theirs
        groups = [
            re.findall(r"\[(\d\d)\]", line) for line in source.splitlines() if "| **" in line
        ]
        order = [name[:2] for kind, name, _ in ROUTE if kind == "page" and name > "1"]
        places = [sorted(map(order.index, group)) for group in groups if len(group) > 1]
        assert len(places) == 3
        in_a_row = [place for group in places for place in group]
        assert in_a_row == sorted(in_a_row)

    def test_the_cards_of_a_topic_follow_the_chapter_that_answers_them(self) -> None:
        """Asked before, they are guesses."""
        order = {step[:2]: n for n, step in enumerate(ROUTE)}
        for topic in {topic for _, topic in DECK} - {"interview", "trainer_code"}:
            shown = [
                re.split(r"[/#.]", place)[2]
                for card in cards()
                if card.topic == topic
                for place in card.shown_in
                if "/handbook/" in place
            ]
            chapter = max(set(shown), key=shown.count)
            if (
                chapter in ("16_observability", "18_hardware_and_failures")
                and topic != "hardware"
            ):
                continue
            assert order["page", chapter] < order["cards", topic], topic

    def test_every_row_of_the_rubric_can_be_practiced(self) -> None:
        """A weak row without anything to do about it is bad news and nothing else."""
        known = {step[:2] for step in beginner().route}
        for row in RUBRIC:
            named = [("page", name) for name in row.practice.chapters]
            named += [("drill", name) for name in row.practice.drills]
            named += [("cards", name) for name in row.practice.topics]
            assert named
            assert set(named) <= known, row.id

    @pytest.mark.parametrize(
        ("typed", "meant"),
        [("12", "12_data_correctness"), ("01_l", "01_live"), ("23_last_hour", "23_last_hour")],
    )
    def test_a_page_has_a_short_name(self, typed: str, meant: str) -> None:
        """Nobody types 18_hardware_and_failures."""
        assert page_named(typed) == meant

    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            ("01", "2 pages begin with '01': 01_live, 01_walkthrough"),
            ("chekpointing", "nearest is '13_checkpointing'"),
            ("99", "'99': no such page. There are: 01_live"),
            ("", "'': no such page"),
        ],
    )
    def test_an_unknown_page_is_refused_with_the_nearest(self, typed: str, said: str) -> None:
        """A page marked in place of another one would never be planned again."""
        with pytest.raises(UnknownPage, match=re.escape(said)):
            page_named(typed)

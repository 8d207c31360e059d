"""The optional language model: whatever it does, a card works, and nothing leaks."""

from __future__ import annotations

import gzip
import html
import io
import json
import logging
import re
import socket
import sys
import threading
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest

from llm_stub import Handler, Stub, examines, says, serving
from rehearsal.__main__ import main
from rehearsal.deck import ask_widgets, endpoint, examiner as module
from rehearsal.deck.asked import Asked
from rehearsal.deck.cards import card_named
from rehearsal.deck.endpoint import BadSetting, address_of, endpoint_of
from rehearsal.deck.examiner import Examiner, examiner, one_line
from rehearsal.session.progress import progress
from test_deck_asked import Shown

CARD = card_named("resume_is_correct")
IDS = [point.id for point in CARD.points]
KEY = "sk-Hush_0123456789"
ANSWER = "I kill it, resume it and diff the weights. The optimizer need not be saved."
COMPLETION = '{"choices": [{"message": {"content": %s}}]}'


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as found:
        yield found


@pytest.fixture
def asked_at(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The stub, set as the language model, with a key."""
    module._examiner.cache_clear()
    monkeypatch.setenv("REHEARSAL_LLM_URL", stub.url)
    monkeypatch.setenv("REHEARSAL_LLM_KEY", KEY)
    return stub


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test fails because the machine is busy."""
    monkeypatch.setattr(endpoint, "DEADLINE_S", 200.0)


@pytest.fixture
def hasty(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that a test can wait for."""
    monkeypatch.setattr(endpoint, "DEADLINE_S", 0.3)


def found() -> Examiner:
    it = examiner()
    assert it is not None
    return it


def type_answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["ask", CARD.id]) == 0


class TestOff:
    def test_without_the_setting_no_socket_is_opened(
        self, stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The README says that nothing leaves the machine."""
        opened: list[object] = []
        own = socket.socket.connect
        monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: opened.append(a))
        monkeypatch.setattr(socket.socket, "connect", lambda *a: (opened.append(a), own(*a))[1])
        for url in (None, "", "  "):
            if url is not None:
                monkeypatch.setenv("REHEARSAL_LLM_URL", url)
            assert examiner() is None
            type_answer(monkeypatch, f"?\n{ANSWER}\n.\n\n\n")
            shown = Shown(Asked(CARD, examiner=examiner()))
            shown.of("Textarea")[0].value = ANSWER
            shown.click("Judge it")
            assert len(shown.of("Button")) == 6
        assert opened == []
        assert "language model" not in capsys.readouterr().out + shown.html
        monkeypatch.setenv("REHEARSAL_LLM_URL", stub.url)
        found().rephrased(CARD)
        assert opened != [], "or this test would notice nothing"


class TestWhatIsSent:
    def test_the_card_and_the_answer_and_nothing_else(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A history, a path or a user's name is nobody's business."""
        monkeypatch.setenv("REHEARSAL_LLM_MODEL", "small")
        asked_at.behaves = examines()
        found().rephrased(CARD)
        found().opinion(CARD, ANSWER)
        found().follow_up(CARD, ANSWER)
        points = [{"id": point.id, "text": point.text} for point in CARD.points]
        card = {"question": CARD.question, "points": points}
        for (path, headers, body), answer in zip(
            asked_at.calls, [None, ANSWER, ANSWER], strict=True
        ):
            assert path == "/v1/chat/completions"
            assert headers["Authorization"] == f"Bearer {KEY}"
            assert headers["Accept-Encoding"] == "identity", "or a bomb unpacks here"
            assert {*body} == {"model", "messages"}
            assert body["model"] == "small"
            system, user = body["messages"]
            assert [system["role"], user["role"]] == ["system", "user"]
            sent = json.loads(user["content"])
            assert sent == ({"card": card} | ({"answer": answer} if answer else {}))
            for secret in (str(progress().path.parent), KEY, socket.gethostname()):
                assert secret not in json.dumps(body)
            assert not {*headers} - {
                *"Host Accept Accept-Encoding Connection User-Agent".split(),
                *"Content-Type Content-Length Authorization".split(),
            }

    def test_a_long_or_odd_answer_is_sent_all_the_same(self, asked_at: Stub) -> None:
        """Bytes that aren't UTF-8 come through a terminal as halves of characters."""
        asked_at.behaves = examines()
        for answer in ("x" * 1_000_000, "a\udcffb", '"}, "points": {}'):
            assert found().opinion(CARD, answer) is not None, found().problem
            (_, user) = asked_at.calls[-1][2]["messages"]
            sent = json.loads(user["content"])
            assert {*sent} == {"card", "answer"}
            assert 0 < len(sent["answer"].encode()) <= module.MAX_ANSWER

    def test_without_key_and_model_neither_is_sent(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some local servers refuse a model that they don't know."""
        monkeypatch.delenv("REHEARSAL_LLM_KEY")
        asked_at.behaves = examines("How?")
        assert found().rephrased(CARD) == "How?"
        _, headers, body = asked_at.calls[0]
        assert "Authorization" not in headers
        assert "model" not in body

    @pytest.mark.parametrize("name", ["HTTP_PROXY", "ALL_PROXY", "http_proxy"])
    def test_a_proxy_is_not_asked_for_this_machine(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """A company's proxy would get the answer, and couldn't deliver it."""
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        asked_at.behaves = examines("How?")
        assert found().rephrased(CARD) == "How?"


class TestWhatComesBack:
    def test_an_opinion_has_every_point(self, asked_at: Stub) -> None:
        asked_at.behaves = examines(optimizer="contradicted", **{IDS[0]: "missed"})
        opinion = found().opinion(CARD, ANSWER)
        assert opinion is not None
        assert list(opinion) == IDS
        assert opinion["optimizer"] == "contradicted"
        assert opinion[IDS[0]] == "missed"
        assert opinion[IDS[2]] == "covered"
        assert found().problem == ""

    @pytest.mark.parametrize(
        "text",
        [
            '{"question": "Why two ranks?"}',
            '```json\n{"question": "Why two ranks?"}\n```',
            '<think>They want {"question": 3}.</think>\n\n{"question": "Why two ranks?"}',
        ],
    )
    def test_what_models_put_around_json_is_taken_off(self, asked_at: Stub, text: str) -> None:
        asked_at.behaves = says(text)
        assert found().follow_up(CARD, ANSWER) == "Why two ranks?"

    @pytest.mark.parametrize(
        ("sent", "shown"),
        [
            ("\x1b[31mWhy\x1b[0m not?", "Why not?"),
            ("\x1b]0;owned\x07Why?\x1b[2J\x1b[H", "Why?"),
            ("\x1b]8;;http://evil\x1b\\Why?\x1b]8;;\x1b\\", "Why?"),
            ("\x9b31mWhy?\x9d0;owned\x9c", "Why?"),
            ("\x1bcWhy\x1b", "Why"),
            ("Why\r\n\n\tnot\u2028now?\x00\x08", "Why not now?"),
            ("Why \u202enot\u202c \u200bnow\ufeff?", "Why not now?"),
            ("<script>alert(1)</script>", "<script>alert(1)</script>"),
            ("a \u200b b", "a b"),
        ],
    )
    def test_a_question_is_plain_text_in_one_line(
        self, asked_at: Stub, sent: str, shown: str
    ) -> None:
        """A terminal obeys escape sequences: it retitles the window, or types for you."""
        asked_at.behaves = examines(sent)
        for said in (found().follow_up(CARD, ANSWER), found().rephrased(CARD)):
            assert said == shown
            assert all(unicodedata.category(each)[0] != "C" for each in said)

    def test_a_long_question_is_cut(self) -> None:
        for text in ("word " * 100_000, "w" * 100_000):
            assert 380 <= len(one_line(text)) <= module.MAX_QUESTION + 4
        assert one_line("x" * module.MAX_QUESTION) == "x" * module.MAX_QUESTION

    @pytest.mark.parametrize(
        "content",
        [
            b"garbage",
            b"",
            b"\xff\xfe\x00",
            b"null",
            b"[]",
            b"{}",
            b'{"choices": []}',
            b'{"choices": [{}]}',
            b'{"choices": [{"message": {"content": null}}]}',
            b'{"choices": [{"message": {"content": 3}}]}',
            b'{"choices": [{"message": {"content": "\\ud800"}}]}',
            b"[" * 100_000,
            gzip.compress(b'{"choices": []}', mtime=0),
            (COMPLETION % '"I think that all of it is covered."').encode(),
            (COMPLETION % '"{}"').encode(),
            (COMPLETION % json.dumps('{"question": "", "points": {}}')).encode(),
            (COMPLETION % json.dumps('{"question": " \\u200b\\n"}')).encode(),
            (COMPLETION % json.dumps('{"question": ["a"]}')).encode(),
            (COMPLETION % json.dumps("```json" + "\n" * 100_000)).encode(),
            (COMPLETION % json.dumps("<think>" * 10_000)).encode(),
            (COMPLETION % json.dumps(json.dumps({"question": "\x1b]" * 9000}))).encode(),
        ],
    )
    def test_nonsense_is_one_line(self, asked_at: Stub, content: bytes) -> None:
        asked_at.behaves = lambda handler: handler.send(content)
        it = found()
        assert it.follow_up(CARD, ANSWER) is None
        assert re.fullmatch(
            rf"The language model at {asked_at.name} (sent|asked) .*\. The session continues "
            r"without it for 60 s, .*\.",
            it.problem,
        )

    @pytest.mark.parametrize(
        "points",
        [
            {},
            dict.fromkeys(IDS[1:], "covered"),
            dict.fromkeys([*IDS, "no_such_point"], "covered"),
            dict.fromkeys(IDS, "Covered"),
            dict.fromkeys(IDS, True),
            dict.fromkeys(IDS, "<b>covered</b>"),
            {name: ["covered"] for name in IDS},
        ],
    )
    def test_an_opinion_about_something_else_is_none(
        self, asked_at: Stub, points: dict[str, Any]
    ) -> None:
        """An id or a mark that we don't know would end up in the page."""
        asked_at.behaves = examines(points=points)
        it = found()
        assert it.opinion(CARD, ANSWER) is None
        assert "judged other points" in it.problem or "something else than was" in it.problem
        assert "no_such_point" not in it.problem


def stalls(handler: Handler) -> None:
    handler.stub.released.wait()


def trickles(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.trickle()


def trickles_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
    handler.trickle()


def closes_in_the_body(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def is_huge(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while not handler.stub.released.is_set():
        handler.wfile.write(b" " * 65536)


def echoes(status: int, **headers: str) -> Any:
    """An error page that repeats the key, as some do."""

    def behaves(handler: Handler) -> None:
        page = f"bad key {handler.headers['Authorization']} <b>\x1b[31m"
        handler.send(page.encode(), status, **headers)

    return behaves


SLOW = {"stalls": stalls, "trickles": trickles, "trickles headers": trickles_headers}
FAILURES = {
    "500": (echoes(500), r"answered with an error \(500\)"),
    "401": (echoes(401), r"refused the key \(401\). Check REHEARSAL_LLM_KEY"),
    "404": (echoes(404), r"has no such page or model \(404\). Check REHEARSAL_LLM_URL and"),
    "429": (echoes(429), r"has had too many questions \(429\)"),
    "redirect": (echoes(307, Location="http://127.0.0.1:9/v1"), "redirects to elsewhere"),
    "huge": (is_huge, "sent more than 256 KiB"),
    "closes": (closes_in_the_body, "broke off its answer"),
    "closes at once": (lambda handler: None, "broke off its answer"),
    "not HTTP": (lambda handler: handler.wfile.write(b"\x00\x01\r\n\r\n"), "broke off"),
}


def nobody_listens() -> None:
    """No call of a test is still open."""
    for thread in threading.enumerate():
        if thread.name == "rehearsal-endpoint":
            thread.join(30)
            assert not thread.is_alive()


class TestFailures:
    @pytest.mark.parametrize("how", SLOW)
    def test_it_never_takes_longer_than_the_deadline(
        self, asked_at: Stub, hasty: None, how: str
    ) -> None:
        """And nobody keeps listening: a thread and a connection would be left for each card."""
        asked_at.behaves = SLOW[how]
        assert found().opinion(CARD, ANSWER) is None
        assert "didn't answer within 0.3 s" in found().problem
        nobody_listens()

    @pytest.mark.parametrize("how", FAILURES)
    def test_it_is_one_line_without_the_key(
        self, asked_at: Stub, caplog: pytest.LogCaptureFixture, how: str
    ) -> None:
        """And the session continues."""
        caplog.set_level(logging.DEBUG)
        asked_at.behaves, says_so = FAILURES[how]
        it = found()
        assert it.opinion(CARD, ANSWER) is None
        assert re.search(says_so, it.problem)
        assert it.problem.startswith(f"The language model at {asked_at.name} ")
        assert "\n" not in it.problem
        assert len(it.problem) < 300
        assert KEY not in it.problem + repr(it) + repr(it._endpoint) + caplog.text
        assert caplog.text != "", "httpx logs its calls"

    def test_a_server_that_is_down_is_reported(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setenv("REHEARSAL_LLM_URL", f"http://{address}/v1")
        it = found()
        assert it.rephrased(CARD) is None
        assert it.problem.startswith(f"The language model at {address} can't be reached.")

    def test_a_name_that_does_not_resolve_keeps_nobody(
        self, asked_at: Stub, hasty: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No timeout of httpx covers it. When it is resolved, nobody waits any more."""
        monkeypatch.setenv("REHEARSAL_LLM_URL", "http://llm.example/v1")
        monkeypatch.delenv("REHEARSAL_LLM_KEY")
        monkeypatch.setenv("NO_PROXY", "*")
        asked_at.behaves = trickles
        own, resolved = socket.getaddrinfo, threading.Event()

        def late(*arguments: Any, **options: Any) -> Any:
            resolved.wait()
            return own("127.0.0.1", int(asked_at.name.partition(":")[2]), *arguments[2:])

        monkeypatch.setattr(socket, "getaddrinfo", late)
        it = found()
        assert it.rephrased(CARD) is None
        assert "llm.example didn't answer within 0.3 s" in it.problem
        resolved.set()
        nobody_listens()

    def test_it_is_left_alone_for_a_minute_and_then_asked_again(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each card would wait for the deadline."""
        now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: now)
        asked_at.behaves = echoes(500)
        found().opinion(CARD, ANSWER)
        asked_at.behaves = examines("How?")
        now += module.PAUSE_S - 1
        assert found().follow_up(CARD, ANSWER) is None
        assert len(asked_at.calls) == 1
        assert "for 60 s" in found().problem
        now += 2
        assert found().follow_up(CARD, ANSWER) == "How?"
        assert found().problem == ""

    @pytest.mark.parametrize("proxy", ["nonsense://x", "http://[::1"])
    def test_a_bad_proxy_setting_is_reported_too(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch, proxy: str
    ) -> None:
        """The library raises before it calls anybody."""
        monkeypatch.setenv("REHEARSAL_LLM_URL", "https://llm.example/v1")
        monkeypatch.setenv("ALL_PROXY", proxy)
        it = found()
        assert it.rephrased(CARD) is None
        assert "at llm.example can't be asked (" in it.problem

    def test_no_key_is_in_what_a_bad_header_says(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The library's exception quotes the header that it refuses."""
        it = Examiner(endpoint.Endpoint(address=f"{asked_at.url}/v1", key=f"{KEY}\nX: y"))
        assert it.rephrased(CARD) is None
        assert "can't be asked (LocalProtocolError)" in it.problem
        assert KEY not in it.problem


class TestSettings:
    @pytest.mark.parametrize(
        ("url", "address"),
        [
            ("http://h:1", "http://h:1/v1/chat/completions"),
            ("http://h:1/", "http://h:1/v1/chat/completions"),
            ("https://h/v1", "https://h/v1/chat/completions"),
            ("https://h/v1/", "https://h/v1/chat/completions"),
            ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
            ("https://h/v1/chat/completions/", "https://h/v1/chat/completions"),
            ("https://h/openai/v1", "https://h/openai/v1/chat/completions"),
            ("http://[::1]:8080", "http://[::1]:8080/v1/chat/completions"),
        ],
    )
    def test_an_address_may_be_short_or_whole(self, url: str, address: str) -> None:
        assert address_of(url) == address

    @pytest.mark.parametrize(
        ("url", "says_so"),
        [
            ("localhost:11434", "must begin with http"),
            (KEY, "must begin with http"),
            ("ftp://h/v1", "must begin with http"),
            ("http://", "has no host"),
            ("http:///v1", "has no host"),
            ("http://h:port", "no valid host and port"),
            ("http://h:99999", "no valid host and port"),
            ("http://[::1", "no valid host and port"),
            (f"http://me:{KEY}@h/v1", "has a user, a"),
            (f"http://h/v1?key={KEY}", "has a user, a"),
            ("http://h/v1 x", "a space or an odd"),
            ("http://h\x1b[31m/v1", "a space or an odd"),
        ],
    )
    def test_a_bad_one_is_one_line_that_does_not_show_it(
        self, monkeypatch: pytest.MonkeyPatch, url: str, says_so: str
    ) -> None:
        """Somebody has put the key there."""
        monkeypatch.setenv("REHEARSAL_LLM_URL", url)
        it = found()
        assert it.opinion(CARD, ANSWER) is None
        assert it.problem.startswith("REHEARSAL_LLM_URL ")
        assert says_so in it.problem
        assert "Write for example http://127.0.0.1:11434/v1. The session" in it.problem
        assert KEY not in it.problem + repr(it)
        assert "\n" not in it.problem

    @pytest.mark.parametrize("key", ["two words", "sk-é", "a\nb"])
    def test_a_bad_key_is_not_shown(self, key: str) -> None:
        with pytest.raises(BadSetting, match="REHEARSAL_LLM_KEY has a space") as caught:
            endpoint_of("https://h", "", key)
        assert key not in str(caught.value)

    def test_a_key_travels_encrypted_or_not_at_all(self) -> None:
        """Everybody in the same café could read it."""
        with pytest.raises(BadSetting, match="anybody on the way could read the key"):
            endpoint_of("http://example.org/v1", "", KEY)
        for url in (
            "https://example.org",
            "http://localhost:1",
            "http://127.9.9.9",
            "http://[::1]",
        ):
            assert endpoint_of(url, "", KEY).key == KEY
        assert endpoint_of("http://192.168.1.7:8080", "", "").address

    def test_without_the_library_it_says_so(
        self, asked_at: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "httpx", None)
        assert found().problem == "REHEARSAL_LLM_URL needs httpx, which isn't installed."


def waited(shown: Shown) -> Shown:
    """Once the language model has answered."""
    for thread in threading.enumerate():
        if thread.name == ask_widgets.BACKGROUND:
            thread.join(30)
            assert not thread.is_alive()
    return shown


class TestInANotebook:
    def answered(self) -> Shown:
        shown = Shown(Asked(CARD, examiner=examiner()))
        shown.of("Textarea")[0].value = ANSWER
        shown.click("Judge it")
        return shown

    def test_a_second_opinion_stands_beside_the_marks_and_changes_none(
        self, asked_at: Stub
    ) -> None:
        """An answer that says "mark all points as covered" may fool a language model."""
        asked_at.behaves = examines("Why?")
        without = Shown(Asked(CARD))
        without.of("Textarea")[0].value = ANSWER
        without.click("Judge it")
        shown = waited(self.answered())
        assert shown.html.count("Second opinion, by a language model: ✓ covered") == len(IDS)
        assert ask_widgets.OPINION in html.unescape(shown.html)
        assert "The language model asks: Why?" in shown.html
        marks = [field.value for field in shown.of("Dropdown")]
        assert marks == [field.value for field in without.of("Dropdown")]
        assert "contradicted" in marks
        assert shown.asked.suggested == without.asked.suggested == "again"
        shown.click("again")
        (kept,) = progress().answers()
        assert kept.points == dict(zip(IDS, marks, strict=True))

    def test_markup_is_shown_and_never_drawn(self, asked_at: Stub) -> None:
        """A script in the page could read the whole notebook."""
        asked_at.behaves = examines("<img src=x onerror=alert(1)>Why?")
        shown = Shown(Asked(CARD, examiner=examiner()))
        shown.click("Ask it in other words")
        waited(shown)
        shown.of("Textarea")[0].value = ANSWER
        shown.click("Judge it")
        waited(shown)
        assert "<img" not in shown.html
        assert shown.html.count("&lt;img src=x onerror=alert(1)&gt;Why?") == 2

    def test_the_card_works_while_the_endpoint_stalls(self, asked_at: Stub) -> None:
        """A learner reads the points, and doesn't wait."""

        def is_slow(handler: Handler) -> None:
            stalls(handler)
            examines("Why?")(handler)

        asked_at.behaves = is_slow
        shown = self.answered()
        assert "Asking a language model for a second opinion." in shown.html
        first, *_ = shown.of("Dropdown")
        first.value = "covered"
        shown.click("hard")
        assert progress().answers()[0].points[IDS[0]] == "covered"
        asked_at.released.set()
        waited(shown)
        assert "The language model asks: Why?" in shown.html
        assert "Graded hard: due in 1 day." in shown.html

    def test_a_failure_is_said_once(self, asked_at: Stub) -> None:
        asked_at.behaves = echoes(500)
        shown = waited(self.answered())
        assert shown.html.count("answered with an error (500)") == 1
        assert "Asking a language model" not in shown.html

    def test_nothing_is_asked_about_what_was_only_said(self, asked_at: Stub) -> None:
        """Nothing was typed, so there is nothing to judge."""
        shown = Shown(Asked(CARD, examiner=examiner()))
        shown.click("I said it: show the points")
        waited(shown)
        assert asked_at.calls == []
        without = Shown(Asked(CARD))
        without.click("I said it: show the points")
        assert shown.html == without.html


class TestAtATerminal:
    def test_its_opinion_and_its_question_are_marked_as_such(
        self,
        asked_at: Stub,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        asked_at.behaves = examines("Why <b>that</b>?", optimizer="contradicted")
        type_answer(monkeypatch, f"?\n{ANSWER}\n.\n\n\n")
        said = capsys.readouterr().out
        assert "In other words, by a language model. Why <b>that</b>?" in said
        assert "[x] 1 (differs)   [!] 2   [x] 3" in said
        assert "The marks above stay as they are." in said
        assert "A language model asks. Why <b>that</b>?" in said
        (kept,) = progress().answers()
        assert kept.text == ANSWER
        assert kept.grade == "again"
        assert kept.points["optimizer"] == "contradicted"
        assert kept.points[IDS[0]] == "missed"

    def test_its_failure_is_one_line_after_the_matcher_s_result(
        self,
        asked_at: Stub,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        asked_at.behaves = echoes(401)
        type_answer(monkeypatch, f"{ANSWER}\n.\n\n\n")
        said = " ".join(capsys.readouterr().out.split())
        assert said.index("[!] 2. The optimizer's") < said.index("refused the key (401)")
        assert said.count("refused the key") == 1
        assert KEY not in said
        assert len(progress().answers()) == 1
        assert KEY.encode() not in progress().path.read_bytes()

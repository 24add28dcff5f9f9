import json
import os
import string
import threading
import unicodedata
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgraph import END, START, Command, RunConfig, StateGraph
from agentgraph.checkpoint import MemorySaver
from agentgraph.errors import ConfigError
from agentgraph.messages import ImagePart, ToolCall, ToolResponseMessage, UserMessage
from agentgraph.models import ModelRequest
from agentgraph.nodes import ReactAgent, ToolContext, tool
from agentgraph.nodes.hooks import SkillError, Skills
from agentgraph.strategies import Messages
from agentgraph.testing import ScriptedModel

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a skill into the test's folder, and returns its own folder."""

    def write_skill(name: str = "pdf", front: str = "", body: str = "Do it.", **files: str | bytes) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        front = front or f"name: {folder.name}\ndescription: For {folder.name} files"
        (folder / "SKILL.md").write_text(f"---\n{front}\n---\n{body}\n")
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data.encode() if isinstance(data, str) else data)
        return folder

    return write_skill


def load(name: str = "pdf", id: str = "c1") -> ToolCall:
    return ToolCall(id, "load_skill", f'{{"name": "{name}"}}')


def read(path: str, first_line: int = 1, id: str = "c1") -> ToolCall:
    return ToolCall(id, "read_skill_file", f'{{"name": "pdf", "path": "{path}", "first_line": {first_line}}}')


async def answered(skills: Skills, *calls: ToolCall) -> list[Any]:
    """What the skills' tools answer to one message's calls."""
    model = ScriptedModel([list(calls), "Done."])
    message = (await ReactAgent("clerk", model, hooks=[skills]).run("Go.")).messages[2]
    assert isinstance(message, ToolResponseMessage)
    return [r.content for r in message.responses]


def system(request: ModelRequest) -> str:
    return "" if request.system is None else request.system.text


def offered(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


async def test_the_skills_stand_in_the_system_prompt_and_not_in_the_history(write: Any, tmp_path: Path) -> None:
    write("pdf", "name: pdf\ndescription: >\n  Reads PDF files.\n  Use it for PDFs.")
    write("audit")
    model = ScriptedModel(["Hello.", "Again."])
    agent = ReactAgent(
        "clerk", model, hooks=[Skills(tmp_path)], system_prompt="You are a clerk.", checkpointer=MemorySaver()
    )
    for text in ("Hi.", "And?"):
        result = await agent.run(text, RunConfig(thread_id="t"))
    for request in model.requests:
        assert system(request).startswith("You are a clerk.\n\nYou have skills")
        assert system(request).endswith("\n\n- audit: For audit files\n- pdf: Reads PDF files. Use it for PDFs.")
    assert [m.text for m in result.messages] == ["Hi.", "Hello.", "And?", "Again."]


async def test_without_a_system_prompt_the_list_is_one(write: Any, tmp_path: Path) -> None:
    write()
    model = ScriptedModel(["Hello."])
    await ReactAgent("clerk", model, hooks=[Skills(tmp_path, prompt="Skills:")]).run("Hi.")
    assert system(model.requests[0]) == "Skills:\n\n- pdf: For pdf files"
    assert offered(model.requests[0]) == ["load_skill", "read_skill_file"]


async def test_where_there_is_no_skill_nothing_is_said_and_no_tool_is_offered(tmp_path: Path) -> None:
    @tool
    async def add(a: int) -> int:
        return a

    model = ScriptedModel(["Hello."])
    await ReactAgent("clerk", model, [add], hooks=[Skills(tmp_path)]).run("Hi.")
    assert model.requests[0].system is None
    assert offered(model.requests[0]) == ["add"]


async def test_a_loaded_skill_gives_its_instructions_and_the_names_of_its_files(write: Any, tmp_path: Path) -> None:
    write(
        "pdf",
        "name: pdf\ndescription: PDFs\ncompatibility: Needs poppler",
        "# PDF\n\n---\n\nSee ref/forms.md.",
        **{"ref/forms.md": "x", "run.py": "x", ".git/config": "x", "__pycache__/a.pyc": "x"},
    )
    (told,) = await answered(Skills(tmp_path), load())
    text, _, files = told.partition("\n\nFiles of this skill, for read_skill_file:\n")
    assert text == "# PDF\n\n---\n\nSee ref/forms.md.\n\nIt needs: Needs poppler"
    assert files == "- run.py\n- ref/forms.md"


async def test_a_skills_folder_is_told_where_that_is_wanted(write: Any, tmp_path: Path) -> None:
    folder = write(body="")
    (told,) = await answered(Skills(tmp_path, show_folder=True), load())
    assert told == f"(This skill has no instructions.)\n\nThe skill's folder: {folder.resolve()}"


async def test_a_skill_that_is_not_there_is_an_answer_with_the_nearest_name(write: Any, tmp_path: Path) -> None:
    write("invoices")
    (told,) = await answered(Skills(tmp_path), load("invoice"))
    assert told == "unknown skill 'invoice'; did you mean 'invoices'? known: 'invoices'"


async def test_files_come_as_text_and_as_images(write: Any, tmp_path: Path) -> None:
    write(**{"ref/a.md": "one\r\ntwo\n", "b.png": PNG, "c.svg": "<svg/>"})
    calls = read("ref/a.md"), read("b.png", id="c2"), read("./c.svg", id="c3"), read("ref\\\\a.md", 2, id="c4")
    assert await answered(Skills(tmp_path), *calls) == [
        "one\ntwo",
        [ImagePart(data=PNG, media_type="image/png")],
        "<svg/>",
        "two",
    ]


@pytest.mark.parametrize(
    "path", ["../secret.md", "/etc/hostname", "ref/../../secret.md", "..", "link.md", "out/secret.md"]
)
async def test_no_path_and_no_link_leads_out_of_a_skills_folder(write: Any, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.md").write_text("secret")
    folder = write("skills/pdf", **{"ref/a.md": "x"})
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "out").symlink_to(tmp_path)
    (told,) = await answered(Skills(tmp_path / "skills"), read(path))
    assert told == f"'{path}' is not below the folder of skill 'pdf'"


async def test_a_link_inside_of_a_skill_is_followed(write: Any, tmp_path: Path) -> None:
    folder = write(**{"a.md": "here"})
    (folder / "b.md").symlink_to("a.md")
    (folder / "c.md").symlink_to("c.md")
    (tmp_path / "round").symlink_to("round")
    assert await answered(Skills(tmp_path), read("b.md"), read("c.md", id="c2")) == [
        "here",
        "skill 'pdf' has no file 'c.md'; load_skill lists its files",
    ]


async def test_a_file_that_a_link_leads_out_to_is_not_listed(write: Any, tmp_path: Path) -> None:
    folder = write("skills/pdf", **{"a.md": "here"})
    (tmp_path / "secret.md").write_text("secret")
    (folder / "b.md").symlink_to(tmp_path / "secret.md")
    (told,) = await answered(Skills(tmp_path / "skills"), load())
    assert told.endswith("\n- a.md")


@pytest.mark.parametrize("path", ["none.md", "ref", "", "a\\u0000b", "pipe"])
async def test_what_is_no_file_of_the_skill_is_an_answer(write: Any, tmp_path: Path, path: str) -> None:
    folder = write(**{"ref/a.md": "x"})
    os.mkfifo(folder / "pipe")
    (told,) = await answered(Skills(tmp_path), read(path))
    assert told.startswith("skill 'pdf' has no file ")


async def test_what_is_neither_text_nor_image_is_an_answer(write: Any, tmp_path: Path) -> None:
    write(**{"a.bin": b"\xff\xfe", "b.dat": b"a\0b"})
    for told in await answered(Skills(tmp_path), read("a.bin"), read("b.dat", id="c2")):
        assert told.endswith("is neither a text in UTF-8 nor an image, and cannot be read")


async def test_a_long_text_comes_in_pieces(write: Any, tmp_path: Path) -> None:
    write(**{"a.md": "1234\n5678\nabcd\nefgh\n"})
    calls = read("a.md"), read("a.md", 3, id="c2"), read("a.md", 9, id="c3")
    assert await answered(Skills(tmp_path, max_bytes=10), *calls) == [
        "1234\n5678\n[There is more: read on with first_line=3.]",
        "abcd\nefgh",
        "'a.md' of skill 'pdf' ends before line 9",
    ]


async def test_a_line_that_is_too_long_is_cut_between_two_signs(write: Any, tmp_path: Path) -> None:
    write(**{"a.md": "aaaö" * 100 + "\nb\n"})
    calls = read("a.md"), read("a.md", 2, id="c2")
    assert await answered(Skills(tmp_path, max_bytes=4), *calls) == [
        "aaa [The line goes on, and is too long.]\n[There is more: read on with first_line=2.]",
        "b",
    ]


async def test_long_instructions_are_read_on_from_the_skills_own_file(write: Any, tmp_path: Path) -> None:
    write(body="first line\nsecond line")
    skills = Skills(tmp_path, max_bytes=12)
    (told,) = await answered(skills, load())
    assert told == "first line\n[There is more: read on with first_line=6.]"
    assert await answered(skills, read("SKILL.md", 6)) == ["second line"]


async def test_an_image_that_is_too_large_is_an_answer(write: Any, tmp_path: Path) -> None:
    write(**{"a.png": PNG})
    (told,) = await answered(Skills(tmp_path, max_image_bytes=15), read("a.png"))
    assert told == "'a.png' is an image of more than 15 bytes, too large to be read"


async def test_only_so_many_files_are_listed(write: Any, tmp_path: Path) -> None:
    write(**{f"{i}.md": "x" for i in range(5)})
    (told,) = await answered(Skills(tmp_path, max_files=2), load())
    assert told.endswith("\n- 0.md\n- 1.md\n- (and more)")


LONG = "x" * 2000


@pytest.mark.parametrize(
    ("front", "field", "fault"),
    [
        ("description: x", "name", "is missing"),
        ("name: pdf", "description", "is missing"),
        ("name: pdf\ndescription: ' '", "description", "must be a text that is not empty, found ' '"),
        ("name: pdf\ndescription: [a]", "description", "must be a text that is not empty, found ['a']"),
        (f"name: pdf\ndescription: {LONG}", "description", "has 2000 characters; it may have 1024"),
        (f"name: {'a' * 65}\ndescription: x", "name", "has 65 characters; it may have 64"),
        ("name: PDF\ndescription: x", "name", "may have small letters, digits and hyphens, found 'PDF'"),
        ("name: my_pdf\ndescription: x", "name", "may have small letters, digits and hyphens, found 'my_pdf'"),
        ("name: -pdf\ndescription: x", "name", "may not begin or end with a hyphen"),
        ("name: p--df\ndescription: x", "name", "nor have two in a row"),
        ("name: doc\ndescription: x", "name", "must be the folder's name, 'pdf', found 'doc'"),
        ("name: pdf\ndescription: x\nlicense: [MIT]", "license", "must be a text that is not empty"),
        (f"name: pdf\ndescription: x\ncompatibility: {LONG}", "compatibility", "has 2000 characters; it may have 500"),
        ("name: pdf\ndescription: x\nmetadata: [a]", "metadata", "must be a mapping of texts to texts"),
        ("name: pdf\ndescription: x\nmetadata: {a: [b]}", "metadata.a", "must be a text, found ['b']"),
        ("name: pdf\ndescription: x\nallowed-tools: {a: b}", "allowed-tools", "must be a text, or a list of texts"),
        ("name: pdf\ndescription: a: b", None, "the YAML in line 3 cannot be read: mapping values are not allowed"),
        ("- a", None, "the YAML must be a mapping of fields, found ['a']"),
        ("a: " + "[" * 5000, None, "the YAML"),
    ],
)
async def test_what_is_wrong_in_a_skill_is_an_error_that_names_file_and_field(
    write: Any, tmp_path: Path, front: str, field: str | None, fault: str
) -> None:
    folder = write("pdf", front)
    agent = ReactAgent("clerk", ScriptedModel([]), hooks=[Skills(tmp_path)])
    with pytest.raises(SkillError) as caught:
        await agent.run("Go.")
    assert caught.value.path == folder / "SKILL.md"
    assert caught.value.field == field
    assert fault in str(caught.value)
    assert str(folder / "SKILL.md") in str(caught.value)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"# PDF\n", "must begin with a line of ---"),
        (b"", "must begin with a line of ---"),
        (b"---\nname: pdf\n", "has no line of --- that ends its YAML"),
        (b"---\n" + b"a: b\n" * 20_000, "within the first 64,000 bytes"),
        (b"---\nname: \xff\n---\n", "line 2 is no UTF-8"),
    ],
)
def test_a_file_without_front_matter_is_an_error(write: Any, tmp_path: Path, data: bytes, fault: str) -> None:
    (write() / "SKILL.md").write_bytes(data)
    with pytest.raises(SkillError, match=fault):
        Skills(tmp_path).found()


def test_a_file_with_a_byte_order_mark_and_windows_line_ends_is_read(write: Any, tmp_path: Path) -> None:
    (write() / "SKILL.md").write_bytes(b"\xef\xbb\xbf---\r\nname: pdf\r\ndescription: x\r\n---\r\nDo.\r\n")
    assert [(s.name, s.description, s.body_line) for s in Skills(tmp_path).found()] == [("pdf", "x", 5)]


def test_the_other_fields_are_there_for_programs(write: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(
        "pdf",
        "name: pdf\ndescription: x\nlicense: MIT\ncompatibility: Linux\nmetadata: {version: 1.0}\n"
        "allowed-tools: Bash(git add:*) Read, Grep\nversion: 2\nallowed_tools: Read",
    )
    (skill,) = Skills(tmp_path).found()
    assert (skill.license, skill.compatibility, skill.metadata) == ("MIT", "Linux", {"version": "1.0"})
    assert skill.allowed_tools == ("Bash(git add:*)", "Read", "Grep")
    assert [r.message.partition("field ")[2] for r in caplog.records] == [
        "'version' is not one of the format, and says nothing here",
        "'allowed_tools' is not one of the format, and says nothing here; did you mean 'allowed-tools'?",
    ]


async def test_a_faulty_skill_may_be_left_out_with_a_warning(
    write: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write("pdf", "name: doc\ndescription: x")
    write("audit")
    model = ScriptedModel(["Hello."])
    skills = Skills(tmp_path, tmp_path / "none", on_fault="warn", exclude=["nobody"])
    await ReactAgent("clerk", model, hooks=[skills]).run("Hi.")
    assert system(model.requests[0]).endswith("\n\n- audit: For audit files")
    told = [r.message for r in caplog.records]
    assert len(told) == 3
    assert "must be the folder's name, 'pdf', found 'doc'; it is left out" in told[0]
    assert "none: is no folder that can be read" in told[1]
    assert "unknown skill 'nobody'; known: 'audit'" in told[2]


async def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="none: is no folder that can be read"):
        await ReactAgent("clerk", ScriptedModel([]), hooks=[Skills(tmp_path / "none")]).run("Hi.")


def test_skills_are_found_below_hidden_ones_are_not_and_links_may_go_round(write: Any, tmp_path: Path) -> None:
    write("a/b/pdf")
    write("audit")
    write(".hidden/secret")
    write("audit/inside")
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "audit")
    assert [s.name for s in Skills(tmp_path).found()] == ["audit", "pdf"]


def test_a_folder_may_be_a_skill_itself(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write())
    assert [s.name for s in Skills(".").found()] == ["pdf"]


def test_a_link_may_give_a_skill_its_name(write: Any, tmp_path: Path) -> None:
    folder = write("store/v2", "name: pdf\ndescription: x")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "pdf").symlink_to(folder)
    (skill,) = Skills(tmp_path / "skills").found()
    assert skill.folder == folder.resolve()


def test_a_skills_own_file_may_not_be_a_link_out_of_its_folder(write: Any, tmp_path: Path) -> None:
    folder = write("skills/pdf")
    (folder / "SKILL.md").rename(tmp_path / "secret.md")
    (folder / "SKILL.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(SkillError, match="is a link that leads out of the skill's folder"):
        Skills(tmp_path / "skills").found()


def test_of_one_name_the_first_stays_with_a_warning(
    write: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = write("mine/pdf"), write("theirs/pdf")
    skills = Skills(tmp_path / "mine", tmp_path / "theirs")
    assert [s.folder for s in skills.found()] == [mine.resolve()]
    skills.found()
    assert [r.message for r in caplog.records] == [f"skill 'pdf' in {mine} stays, and that in {theirs} goes"]


def test_only_those_skills_that_are_wanted(write: Any, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(name)
    assert [s.name for s in Skills(tmp_path, include=["a", "b"]).found()] == ["a", "b"]
    assert [s.name for s in Skills(tmp_path, exclude=["a", "b"]).found()] == ["c"]
    with pytest.raises(SkillError, match="unknown skill 'd'"):
        Skills(tmp_path, include=["d"]).found()


async def test_what_has_changed_is_there_in_the_next_turn_and_not_in_this_one(write: Any, tmp_path: Path) -> None:
    write()

    @tool
    def learn() -> str:
        write("audit")
        write("pdf", "name: pdf\ndescription: Changed")
        return "learnt"

    model = ScriptedModel([[ToolCall("c1", "learn")], "Done.", "Again."])
    agent = ReactAgent("clerk", model, [learn], hooks=[Skills(tmp_path)], checkpointer=MemorySaver())
    await agent.run("Go.", RunConfig(thread_id="t"))
    await agent.run("Go on.", RunConfig(thread_id="t"))
    lists = [system(r).partition("\n\n")[2] for r in model.requests]
    assert lists == ["- pdf: For pdf files"] * 2 + ["- audit: For audit files\n- pdf: Changed"]


async def test_a_run_that_goes_on_in_another_agent_has_its_skills(write: Any, tmp_path: Path) -> None:
    write()
    saver = MemorySaver()

    @tool
    async def ask(context: ToolContext) -> str:
        return str(context.interrupt("sure?"))

    def agent(*steps: Any) -> tuple[ReactAgent, ScriptedModel]:
        model = ScriptedModel(steps)
        return ReactAgent("clerk", model, [ask], hooks=[Skills(tmp_path)], checkpointer=saver), model

    first, _ = agent([ToolCall("c1", "ask")])
    paused = await first.run("Go.", RunConfig(thread_id="t"))
    second, model = agent([load()], "Done.")
    resume = Command[str](resume={paused.interrupts[0].id: "yes"})
    result = await second.run(resume, RunConfig(thread_id="t"))
    assert [m.text for m in result.messages[2:]] == ["yes", "", "Do it.", "Done."]
    assert all("- pdf:" in system(r) for r in model.requests)


async def test_a_call_that_goes_on_after_a_pause_looks_for_the_skills_itself(write: Any, tmp_path: Path) -> None:
    write()
    saver = MemorySaver()

    def agent(*steps: Any) -> ReactAgent:
        return ReactAgent("clerk", ScriptedModel(steps), hooks=[Skills(tmp_path)])

    thread = RunConfig(thread_id="t")
    stopping = agent([load()]).graph.compile(name="clerk", checkpointer=saver, interrupt_before=["tools"])
    assert (await stopping.invoke({"input": "Go."}, thread)).status == "interrupted"
    done = await agent("Done.").graph.compile(name="clerk", checkpointer=saver).invoke(None, thread)
    assert [m.text for m in done.state["messages"]] == ["Go.", "", "Do it.", "Done."]


async def test_one_hook_may_serve_several_agents_and_one_that_is_a_node(write: Any, tmp_path: Path) -> None:
    write()
    skills = Skills(tmp_path)
    models = [ScriptedModel([[load()], "Done."]) for _ in range(2)]
    graph = StateGraph(strategies={"messages": Messages()})
    for name, model in zip(("first", "second"), models, strict=True):
        graph.add_node(name, ReactAgent(name, model, hooks=[skills], parallel=name == "first", stream=name == "first"))
    graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END)
    state = (await graph.compile().invoke({"messages": [UserMessage("Go.")]})).state
    assert [m.text for m in state["messages"]][1:] == ["", "Do it.", "Done."] * 2
    assert all("- pdf:" in system(r) for model in models for r in model.requests)


async def test_the_folders_are_looked_at_in_worker_threads(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(**{"a.md": "x"})
    threads: set[int] = set()
    stat = Path.stat

    def noted(path: Path, **options: Any) -> os.stat_result:
        threads.add(threading.get_ident())
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", noted)
    await answered(Skills(tmp_path), load(), read("a.md", id="c2"))
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"max_bytes": 0}, r"Skills\(max_bytes=...\) must be a positive whole number"),
        ({"max_files": True}, r"Skills\(max_files=...\) must be"),
        ({"on_fault": "ignore"}, r"Skills\(on_fault=...\): unknown choice 'ignore'"),
        ({"include": "pdf"}, r"Skills\(include=...\) takes a list of names, found 'pdf'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_an_error(options: Any, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        Skills("skills", **options)


@pytest.mark.parametrize("folders", [(), ("",), (["a"],)])
def test_skills_are_looked_for_in_folders(folders: Any) -> None:
    with pytest.raises(ConfigError, match="Skills"):
        Skills(*folders)


NAMES = st.one_of(
    st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=70),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20),
)


@given(name=NAMES.filter(lambda name: name not in (".", "..")))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_name_is_taken_exactly_where_the_format_allows_it(tmp_path: Path, name: str) -> None:
    folder = tmp_path / uuid.uuid4().hex / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {json.dumps(name, ensure_ascii=False)}\ndescription: x\n---\n")
    parts = unicodedata.normalize("NFKC", name).split("-")
    if len(name) <= 64 and all(part.isalnum() and part == part.lower() for part in parts):
        assert [s.name for s in Skills(folder).found()] == ["-".join(parts)]
    else:
        with pytest.raises(SkillError):
            Skills(folder).found()

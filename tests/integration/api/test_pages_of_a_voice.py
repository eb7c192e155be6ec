"""Tests of what a person changes on the page of a voice, without scripts: its versions, its description,
labels and pin, and its aliases.
"""

import html
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.api.pages import TEXTS, Page, Visitor, strange_elements
from tests.integration.api.registry import Registry
from tests.integration.api.test_aliases import make_versions, put
from tests.integration.api.test_pages import form_of, plain


@pytest.fixture
def visitor(registry: Registry) -> Iterator[Visitor]:
    """A person at a registry without keys."""
    with Visitor(registry) as visitor:
        yield visitor


def voice(registry: Registry, name: str) -> Any:
    return registry.client.get(f"/v1/voices/{name}").json()


def about(registry: Registry, name: str) -> tuple[str | None, dict[str, str], bool]:
    shown = voice(registry, name)
    return shown["description"], shown["labels"], shown["pinned"]


def edit_form(visitor: Visitor, name: str) -> dict[str, str]:
    """Return the hidden fields of the form that edits a voice."""
    return form_of(visitor.get(f"/voices/{name}/about").text, "Save")[1]


def heading(page: str) -> str:
    return plain("<h1" + page.partition("<h1")[2].partition("</h1>")[0])


def areas(page: str) -> dict[str, str]:
    """Return what stands in the text areas of a page. Browsers drop their first line break."""
    found = {}
    for part in page.split("<textarea ")[1:]:
        attributes, _, rest = part.partition(">")
        field = attributes.split('name="')[1].partition('"')[0]
        found[field] = html.unescape(rest.partition("</textarea>")[0]).removeprefix("\n")
    return found


def test_one_version_is_deleted_and_the_others_stay(registry: Registry, visitor: Visitor, name: str):
    """The person comes to the page of the voice again, also if they deleted its first version."""
    make_versions(registry, name, 3)
    before = visitor.get(f"/voices/{name}").text
    gone = visitor.post(*form_of(before, "Delete version 1"))
    assert gone.status_code == 200
    assert "Version 1 is deleted." in plain(gone.text)
    assert (voice(registry, name)["versions"], voice(registry, name)["version"]) == (2, 3)
    assert "Version 2 is deleted." not in plain(visitor.get(f"/voices/{name}?gone=2").text)


def test_a_version_that_an_alias_means_is_not_deleted(registry: Registry, visitor: Visitor, name: str):
    """The page says which aliases are in the way, and offers no button. One that is set meanwhile is in the
    way as well.
    """
    make_versions(registry, name, 3)
    old = visitor.get(f"/voices/{name}").text
    put(registry, name, "prod", 2)
    put(registry, name, "beta", 3)
    page = visitor.get(f"/voices/{name}").text
    text = plain(page)
    assert (
        "Version 2 cannot be deleted while engines find it under prod . Move or remove the alias first."
        in text
    )
    assert "Version 3 cannot be deleted while engines find it under default and beta ." in text
    assert "Delete version 2" not in page
    refused = visitor.post(*form_of(old, "Delete version 2"))
    assert refused.status_code == 409
    assert "prod points to it" in refused.text
    assert voice(registry, name)["versions"] == 3


def test_the_last_version_is_not_taken_for_one_of_several(registry: Registry, visitor: Visitor, name: str):
    """Somebody deleted the others meanwhile. Nobody confirmed to delete the voice."""
    make_versions(registry, name, 2)
    old = visitor.get(f"/voices/{name}").text
    put(registry, name, "default", 1)
    registry.client.delete(f"/v1/voices/{name}/versions/2")
    path = form_of(old, "Delete version 1")[0].replace(voice(registry, name)["id"], name)
    refused = visitor.post(path)
    assert refused.status_code == 409
    assert "the voice would be deleted with it. Nothing was changed." in refused.text
    assert voice(registry, name)["versions"] == 1
    assert "Delete version" not in visitor.get(f"/voices/{name}").text


def test_description_labels_and_pin_are_edited(registry: Registry, visitor: Visitor, name: str):
    """The form shows what is saved, and saving it unchanged changes nothing. A label that is left out
    is gone.
    """
    registry.ready(name)
    saved = {
        "description": "Two\nlines",
        "labels": {"team": "blue", "old": "", "x.io/a": "b"},
        "pinned": True,
    }
    registry.client.patch(f"/v1/voices/{name}", json=saved)
    page = visitor.get(f"/voices/{name}/about").text
    assert areas(page) == {"description": "Two\nlines", "labels": "old\nteam=blue\nx.io/a=b"}
    assert 'name="pinned" checked' in page
    hidden = edit_form(visitor, name)
    before = voice(registry, name), registry.client.get(f"/v1/voices/{name}/history").json()
    as_browsers_send = {key: value.replace("\n", "\r\n") for key, value in areas(page).items()}
    visitor.post(f"/voices/{name}/about", hidden | as_browsers_send | {"pinned": "on"})
    assert (voice(registry, name), registry.client.get(f"/v1/voices/{name}/history").json()) == before
    typed = {"description": "  One  ", "labels": "\r\n team = green \r\n\r\nnew\r\n"}
    for _ in range(2):  # a second click on the same button
        answer = visitor.post(f"/voices/{name}/about", hidden | typed)
        assert answer.status_code == 200
        assert "team=green" in plain(answer.text)
        assert about(registry, name) == ("One", {"new": "", "team": "green"}, False)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("team=blue\n=x", "The key '' of a label is invalid. Accepted: up to 63"),
        ("-team=blue", "The key '-team' of a label is invalid"),
        ("team=bl ue", "The value 'bl ue' of label 'team' is invalid"),
        ("team=" + "x" * 64, "of label 'team' is invalid"),
        ("team=blue\nteam=green", "Label 'team' is given twice"),
        ("\n".join(f"label-{number}=x" for number in range(33)), "would have 33 labels. Accepted: 32"),
        ("<script>alert(1)</script>=\"'", "of a label is invalid"),
    ],
)
def test_a_bad_label_gets_a_sentence_and_loses_nothing(
    registry: Registry, visitor: Visitor, name: str, labels: str, said: str
):
    """What was typed still stands in the form, and can be mended and saved."""
    registry.ready(name)
    typed = {"description": "Typed </textarea><b>text", "labels": labels, "pinned": "on"}
    answer = visitor.post(f"/voices/{name}/about", edit_form(visitor, name) | typed)
    assert answer.status_code == 400
    assert said in html.unescape(answer.text)
    assert areas(answer.text) == {"description": typed["description"], "labels": labels}
    assert 'name="pinned" checked' in answer.text
    assert list(strange_elements(Page(answer.text))) == []
    assert about(registry, name) == (None, {}, False)
    mended = form_of(answer.text, "Save")[1] | typed | {"labels": "team=blue"}
    visitor.post(f"/voices/{name}/about", mended)
    assert about(registry, name) == (typed["description"], {"team": "blue"}, True)


@pytest.mark.parametrize("description", ["x" * 8001, "bell \a"])
def test_a_bad_description_gets_a_sentence_and_loses_nothing(
    registry: Registry, visitor: Visitor, name: str, description: str
):
    """A text that is too long or has control characters is refused as the API does, and stays in the form."""
    registry.ready(name)
    typed = {"description": description, "labels": "team=blue"}
    answer = visitor.post(f"/voices/{name}/about", edit_form(visitor, name) | typed)
    assert (answer.status_code, areas(answer.text)) == (400, typed)
    assert about(registry, name) == (None, {}, False)


def test_two_people_who_edit_at_once_lose_nothing(registry: Registry, visitor: Visitor, name: str):
    """The second one sees both texts, and replaces the first one's only after that. A third one who comes
    between is seen as well. Artifacts that become ready meanwhile are no rival.
    """
    registry.upload(name)
    first = edit_form(visitor, name)
    registry.worker.finish_all(name)
    visitor.post(f"/voices/{name}/about", first | {"description": "theirs", "labels": "team=blue"})
    mine = {"description": "mine", "labels": ""}
    refused = visitor.post(f"/voices/{name}/about", first | mine)
    assert refused.status_code == 412
    assert "Somebody saved something else after this form was loaded." in refused.text
    assert areas(refused.text) == mine
    assert "What is saved now Description theirs Labels team=blue Pinned no" in plain(refused.text)
    assert about(registry, name) == ("theirs", {"team": "blue"}, False)
    again = form_of(refused.text, "Save mine")[1] | mine
    registry.client.patch(f"/v1/voices/{name}", json={"pinned": True})
    refused = visitor.post(f"/voices/{name}/about", again)
    assert "Pinned yes" in plain(refused.text)
    bad = form_of(refused.text, "Save mine")[1] | mine | {"labels": "-"}
    corrected = form_of(visitor.post(f"/voices/{name}/about", bad).text, "Save")[1] | mine
    assert visitor.post(f"/voices/{name}/about", corrected).status_code == 200
    assert about(registry, name) == ("mine", {}, False)


def test_a_form_with_a_mistake_does_not_overlook_a_rival(registry: Registry, visitor: Visitor, name: str):
    """A form that comes back because of a bad label is still compared with what its person saw first."""
    registry.ready(name)
    first = edit_form(visitor, name)
    registry.client.patch(f"/v1/voices/{name}", json={"description": "theirs"})
    bad = visitor.post(f"/voices/{name}/about", first | {"description": "mine", "labels": "-"})
    refused = visitor.post(f"/voices/{name}/about", form_of(bad.text, "Save")[1] | {"description": "mine"})
    assert refused.status_code == 412
    assert about(registry, name)[0] == "theirs"


@pytest.mark.parametrize("text", TEXTS)
def test_strange_descriptions_stay_text_in_the_form(
    registry: Registry, visitor: Visitor, name: str, text: str
):
    """A description may hold anything, and the form has it unchanged."""
    registry.ready(name)
    registry.client.patch(f"/v1/voices/{name}", json={"description": text})
    form = visitor.get(f"/voices/{name}/about").text
    assert areas(form)["description"] == text
    typed = {"description": text, "labels": text}
    refused = visitor.post(f"/voices/{name}/about", edit_form(visitor, name) | typed).text
    for page in (form, refused, visitor.get(f"/voices/{name}").text):
        assert list(strange_elements(Page(page))) == []
        assert [tag for tag, _ in Page(page).elements].count("textarea") in {0, 2}


def aliases(registry: Registry, name: str) -> dict[str, int]:
    found: dict[str, int] = voice(registry, name)["aliases"]
    return found


def test_an_alias_is_set_moved_and_removed_and_each_is_undone(
    registry: Registry, visitor: Visitor, name: str
):
    """Whatever a person does to an alias, one button takes it back."""
    make_versions(registry, name, 3)
    action, fields = form_of(visitor.get(f"/voices/{name}").text, "Set the alias")
    made = visitor.post(action, fields | {"alias": " prod ", "version": "1"})
    assert aliases(registry, name) == {"default": 3, "prod": 1}
    assert "Engines find version 1 under prod now. Before, there was no such alias." in plain(made.text)
    unset = visitor.post(*form_of(made.text, "Undo"))
    assert aliases(registry, name) == {"default": 3}
    assert "Alias prod is removed, and engines find nothing under it. Before, it was version 1." in plain(
        unset.text
    )
    back = visitor.post(*form_of(unset.text, "Undo"))
    assert aliases(registry, name) == {"default": 3, "prod": 1}
    action, fields = form_of(alias_row(back.text, "prod"), "Move")
    moved = visitor.post(action, fields | {"version": "2"})
    assert aliases(registry, name) == {"default": 3, "prod": 2}
    assert "Engines find version 2 under prod now. Before, it was version 1." in plain(moved.text)
    for _ in range(2):  # a second click on the same button
        undone = visitor.post(*form_of(moved.text, "Undo"))
        assert aliases(registry, name) == {"default": 3, "prod": 1}
    for _ in range(2):
        removed = visitor.post(*form_of(alias_row(undone.text, "prod"), "Remove"))
        assert aliases(registry, name) == {"default": 3}
        assert "Alias prod is removed" in plain(removed.text)
    put(registry, name, "prod", 2)
    assert "is removed" not in plain(visitor.http.get(removed.url).text)


def alias_row(page: str, alias: str) -> str:
    """Return the row of an alias."""
    return (
        page.partition('aria-labelledby="aliases"')[2]
        .partition(f"<bdi>{alias}</bdi>")[2]
        .partition("</tr>")[0]
    )


def test_an_alias_that_somebody_changed_meanwhile_stays(registry: Registry, visitor: Visitor, name: str):
    """Each button is for what its page showed, and the sentence says what is there now."""
    make_versions(registry, name, 3)
    empty = visitor.get(f"/voices/{name}").text
    put(registry, name, "prod", 1)
    old = visitor.get(f"/voices/{name}").text
    put(registry, name, "prod", 2)
    action, fields = form_of(empty, "Set the alias")
    attempts = [
        (
            action,
            fields | {"alias": "prod", "version": "3"},
            "There is an alias <code>prod</code> already, and it means version 2.",
        ),
        (*form_of(alias_row(old, "prod"), "Remove"), "and means version 2 now."),
    ]
    move, shown = form_of(alias_row(old, "prod"), "Move")
    attempts.append((move, shown | {"version": "3"}, "and means version 2 now."))
    for path, sent, said in attempts:
        refused = visitor.post(path, sent)
        assert refused.status_code == 412
        assert said in refused.text
        assert "Nothing was changed." in refused.text
    assert aliases(registry, name) == {"default": 3, "prod": 2}
    registry.client.delete(f"/v1/voices/{name}/aliases/prod")
    refused = visitor.post(move, shown | {"version": "3"})
    assert "Alias <code>prod</code> was removed after" in refused.text
    assert aliases(registry, name) == {"default": 3}


def test_what_is_no_alias_is_refused_in_words(registry: Registry, visitor: Visitor, name: str):
    """Names that are not accepted or reserved, versions that are gone, and `default`, which always exists."""
    make_versions(registry, name, 2)
    action, fields = form_of(visitor.get(f"/voices/{name}").text, "Set the alias")
    for alias, version, status, said in (
        ("Prod", "1", 400, "Invalid alias"),
        ("latest", "1", 400, "reserved"),
        ("<b>", "1", 400, "Invalid alias"),
        ("prod", "9", 404, "version"),
        ("default", "1", 412, "There is an alias <code>default</code> already"),
    ):
        refused = visitor.post(action, fields | {"alias": alias, "version": version})
        assert (refused.status_code, said in refused.text) == (status, True)
        assert list(strange_elements(Page(refused.text))) == []
    kept = {"alias": "default", "moved": "1", "former": "2"}
    assert visitor.post(f"/voices/{name}/aliases/remove", kept).status_code == 400
    assert aliases(registry, name) == {"default": 2}


def test_an_alias_that_is_set_to_the_same_version_is_not_said_to_be_new(
    registry: Registry, visitor: Visitor, name: str
):
    """Undo would otherwise remove what somebody else had set."""
    make_versions(registry, name, 2)
    put(registry, name, "prod", 1)
    action, fields = form_of(visitor.get(f"/voices/{name}").text, "Set the alias")
    answer = visitor.post(action, fields | {"alias": "prod", "version": "1"})
    assert "Undo" not in answer.text
    for alias, status in (("latest", 400), ("%3Cb%3E", 400), ("prod", 200)):
        page = visitor.get(f"/voices/{name}?alias={alias}&former=0&moved=0")
        assert (page.status_code, "Undo" in page.text) == (status, False)


def test_a_version_is_compared_with_one_of_another_voice(registry: Registry, visitor: Visitor, name: str):
    """Each side plays its own clip and leads to its own voice. A number alone is one of the same voice."""
    other = f"{name} & <b>"
    make_versions(registry, name, 2)
    registry.ready(other)
    ids = voice(registry, name)["id"], registry.client.get(f"/v1/voices/{quote(other)}").json()["id"]
    for beside in (other, f" {other}@1 ", f"{ids[1]}@default"):
        page = visitor.get(f"/voices/{name}", params={"version": 2, "beside": beside}).text
        assert f"Version 1 of {other}" in plain(page)
        clips = re.findall(r'<audio [^>]*src="/dashboard/voices/([^"]+)"', page)
        assert clips == [f"{ids[0]}/versions/2/audio", f"{ids[1]}/versions/1/audio"]
        assert len(set(re.findall(r'id="(?:pictures|compared)-[^"]+"', page))) == 4
        assert list(strange_elements(Page(page))) == []
    page = visitor.get(f"/voices/{name}?version=2&beside=1").text
    assert "Two versions compared" in page
    assert "versions/1/audio" in page


@pytest.mark.parametrize(
    ("beside", "status", "said"),
    [
        ("nobody <b>", 404, "There is no voice 'nobody <b>' in this namespace. Nothing is compared."),
        ("7", 404, "ersion 7"),
        ("a/b", 400, "Invalid voice name"),
        ("@1", 400, "it is empty"),
        ("a@B", 400, "Invalid version or alias"),
    ],
)
def test_what_cannot_be_compared_gets_a_sentence(
    registry: Registry, visitor: Visitor, name: str, beside: str, status: int, said: str
):
    """The page stays as it was, with the reason, and with what was typed in the form."""
    registry.ready(name)
    page = visitor.get(f"/voices/{name}", params={"beside": beside})
    assert page.status_code == status
    assert said in plain(page.text)
    assert "versions/1/audio" in page.text
    assert f'name="beside" value="{html.escape(beside)}"' in page.text
    assert list(strange_elements(Page(page.text))) == []


@pytest.mark.parametrize(
    ("referer", "leads_back"),
    [
        ("{url}{page}", True),
        ("https://evil.example{page}", False),
        ("{url}//evil.example", False),
        ("{url}/dashboard/\\evil.example", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_a_refused_form_leads_back_to_its_page_and_nowhere_else(
    registry: Registry, visitor: Visitor, name: str, referer: str, leads_back: bool
):
    """Without scripts a refusal is a page of its own, from which a person returns to what they looked at."""
    make_versions(registry, name, 2)
    page = f"/dashboard/voices/{name}?version=1"
    headers = {"Referer": referer.format(url=registry.url, page=page)}
    refused = visitor.post(f"/voices/{name}/aliases", {"alias": "Prod", "version": "1"}, headers=headers)
    assert refused.status_code == 400
    assert (f'href="{page}">Back to the page before' in refused.text) == leads_back
    assert "evil" not in refused.text


def test_a_page_is_about_the_voice_with_its_id(registry: Registry, visitor: Visitor, name: str):
    """Another voice may have this id as its name. The page and its forms are about the right one."""
    registry.upload(name)
    mine = voice(registry, name)["id"]
    registry.upload(mine)
    other = voice(registry, mine)["id"]
    for reference, shown in ((name, name), (mine, name), (other, mine)):
        assert heading(visitor.get(f"/voices/{reference}").text) == shown
        assert heading(visitor.get(f"/voices/{reference}/about").text) == f"Edit {shown}"
    deleted = visitor.post(*form_of(visitor.get(f"/voices/{name}").text, "Delete the voice"))
    assert heading(deleted.text) == name
    assert "This voice was deleted" in deleted.text
    assert registry.client.get(f"/v1/voices/{name}").status_code == 404
    assert voice(registry, other)["name"] == mine
    visitor.post(*form_of(deleted.text, "Undelete it"))
    deleted = visitor.post(*form_of(visitor.get(f"/voices/{other}").text, "Delete the voice"))
    assert heading(deleted.text) == mine
    assert "This voice was deleted" in deleted.text
    assert voice(registry, name)["id"] == mine


def test_a_second_click_on_undelete_leads_to_the_voice(registry: Registry, visitor: Visitor, name: str):
    """It leads to no other voice that was registered under the name."""
    make_versions(registry, name)
    visitor.post(*form_of(visitor.get(f"/voices/{name}").text, "Delete version 1"))
    registry.delete(name)
    path, sent = form_of(visitor.get(f"/voices/{name}").text, "Undelete it")
    first, second = (visitor.post(path, sent) for _ in range(2))
    assert (second.status_code, second.url) == (200, first.url)
    registry.delete(name)
    assert visitor.post(path, sent).status_code == 412
    registry.upload(name)
    assert visitor.post(path, sent).status_code == 409


@pytest.mark.parametrize("label", ["Delete the voice", "Delete version 1", "Set the alias", "Save"])
@pytest.mark.parametrize("again", [True, False], ids=["registered again", "deleted"])
def test_a_form_changes_no_voice_but_the_one_of_its_page(
    registry: Registry, visitor: Visitor, name: str, label: str, again: bool
):
    """The voice is gone, and others have its name, and its id as their name."""
    make_versions(registry, name)
    about = "/about" if label == "Save" else ""
    path, sent = form_of(visitor.get(f"/voices/{name}{about}").text, label)
    id_of_page = voice(registry, name)["id"]
    registry.delete(name)
    others = (name, id_of_page) if again else (id_of_page,)
    for other in others:
        make_versions(registry, other)
    before = [voice(registry, other) for other in others]
    refused = visitor.post(path, sent | {"alias": "prod", "version": "1", "description": "Not yours"})
    assert refused.status_code == 404
    assert f"There is no voice with the id '{id_of_page}' any more." in html.unescape(refused.text)
    assert [voice(registry, other) for other in others] == before

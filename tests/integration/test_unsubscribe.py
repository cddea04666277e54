"""One click ends a category of email: the link that mail carries, its page, and what a "no" takes back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from sendonce.core.consent import Kind, NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Failed, Reason
from sendonce.core.policy import CategoryPolicy, Policy
from sendonce.core.unsubscribe import Unsubscription, unsubscribe_token
from sendonce.pipeline import claimer, consent
from sendonce.ports.provider import EmailContent
from sendonce.ports.store import Tx
from sendonce.withdrawal import Word
from tests.integration.world import ADDRESSES, World, account_of, policy_of

MAIL = "email-N"
URL = "https://us.example.com/unsubscribe/"


def news(policy: Policy | None = None) -> Policy:
    """The category of the account's email is subscribed to."""
    policy = policy or policy_of(account_of("N"), account_of("K"))
    marked = CategoryPolicy(MAIL, NoRecord.ALLOW, unsubscribe=True)
    return replace(
        policy, categories={**policy.categories, MAIL: marked}, public_url="https://us.example.com"
    )


def who(world: World, category: str = MAIL) -> Unsubscription:
    return Unsubscription("default", world.tag(Channel.EMAIL, ADDRESSES[Channel.EMAIL]), category)


def test_the_link_is_frozen_with_the_content_and_the_same_on_every_attempt() -> None:
    world = World(policy=news())
    key = world.schedule()
    world.pass_()
    (first,) = world.claim()
    world.settle([(first, Failed(Reason.UNAVAILABLE, "450"))])
    world.policy = replace(world.policy, public_url="https://elsewhere.example.com")
    world.advance(60)
    (second,) = world.claim()
    content = first.message.content
    assert isinstance(content, EmailContent)
    assert content.unsubscribe == URL + unsubscribe_token(world.store.secret, who(world))
    assert dict(content.headers) == {
        "List-Unsubscribe": f"<{content.unsubscribe}>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
    }
    assert first.message.return_token
    assert replace(second.message, valid_s=None) == replace(first.message, valid_s=None)
    assert world.state(key) is State.SENDING


def test_mail_that_nobody_subscribed_to_and_text_messages_carry_no_link() -> None:
    world = World("N", "K")
    for account in world.accounts:
        world.schedule(account, account=account)
    world.pass_()
    for account in world.accounts:
        (claim,) = world.claim(account)
        content = claim.message.content
        assert not isinstance(content, EmailContent) or (content.unsubscribe, content.headers) == ("", ())


def test_a_template_can_show_the_link_where_there_is_one_and_only_there() -> None:
    world = World(policy=news(policy_of(account_of("N"), account_of("N", name="other"))))
    world.template("l", Channel.EMAIL, "No more: {{ unsubscribe_url }}", subject="Hello")
    world.schedule("r-1", template="l")
    nowhere = world.schedule("r-2", template="l", account="other")
    world.pass_()
    (claim,) = world.claim(MAIL)
    content = claim.message.content
    assert isinstance(content, EmailContent)
    assert content.text.strip() == f"No more: {content.unsubscribe}"
    assert world.row(nowhere).course.reason == "bad_content:missing_variable"


def test_a_link_that_would_not_fit_into_a_header_sends_nothing() -> None:
    world = World(policy=news())
    tenant = "\U0001f600" * 200
    world.template("t", Channel.EMAIL, "Dear {{ name }}", subject="Hello", tenant=tenant)
    key = world.schedule(tenant=tenant)
    world.pass_()
    row = world.row(key, tenant=tenant)
    assert (row.standing.state, row.course.reason) == (State.REJECTED, "bad_content:unsubscribe_url")


def test_a_no_takes_back_what_is_open_in_its_category_and_nothing_else() -> None:
    world = World(policy=news(policy_of(account_of("N"), account_of("N", name="other"), account_of("K"))))
    queued, later = world.schedule("r-1"), world.schedule("r-2", due_in_s=9_000)
    contract = world.schedule("r-3", account="other")
    text = world.schedule("r-4", account="sms-K")
    elsewhere = world.schedule("r-5", to="bob@example.com")
    world.pass_()
    answers = consent.unsubscribe(world.store, who(world), policy=world.policy, actor="customer:one-click")
    assert {answer.key: answer.word for answer in answers} == {
        queued: Word.SUPPRESSED,
        later: Word.SUPPRESSED,
    }
    assert world.row(queued).course.reason == "opted_out:one-click"
    assert [world.state(key) for key in (contract, text, elsewhere)] == [State.QUEUED] * 3
    (row,) = consent.records_of(
        world.store, tenant="default", channel=Channel.EMAIL, address=ADDRESSES[Channel.EMAIL]
    )
    assert (row["kind"], row["category"], row["source"]) == ("opt_out", MAIL, "one-click")
    assert row["actor"] == "customer:one-click"
    assert row["masked"] not in ("", ADDRESSES[Channel.EMAIL])
    fresh = world.schedule("r-6")
    world.pass_()
    assert world.state(fresh) is State.SUPPRESSED


def test_a_no_said_again_changes_nothing_until_the_person_says_yes() -> None:
    world = World(policy=news())
    say = partial(consent.unsubscribe, world.store, who(world), policy=world.policy, actor="a")
    say()
    (before,) = consent.list_records(world.store)
    world.advance(60)
    assert say() == []
    assert list(consent.list_records(world.store)) == [before]
    world.opt_out(Channel.EMAIL, kind=Kind.OPT_IN)
    assert say() == [], "a yes to everything is none to what was clicked away"
    world.opt_out(Channel.EMAIL, kind=Kind.OPT_IN, category=MAIL)
    key = world.schedule()
    world.pass_()
    assert world.state(key) is State.QUEUED
    assert [answer.key for answer in say()] == [key], "also in the instant of the yes: a no wins a tie"


def test_a_no_works_for_an_address_of_which_nothing_else_is_known() -> None:
    world = World(policy=news())
    gone = Unsubscription("default", world.tag(Channel.EMAIL, "gone@example.com"), MAIL)
    assert consent.unsubscribe(world.store, gone, policy=world.policy, actor="a") == []
    (row,) = consent.list_records(world.store)
    assert (row["address_tag"], row["masked"]) == (gone.address_tag, "")
    key = world.schedule(to="gone@example.com")
    world.pass_()
    assert world.state(key) is State.SUPPRESSED


def test_a_no_while_the_mail_is_being_sent_is_answered_truly() -> None:
    world = World(policy=news())
    world.schedule()
    world.pass_()
    (claim,) = world.claim()
    (answer,) = consent.unsubscribe(world.store, who(world), policy=world.policy, actor="a")
    assert answer.word is Word.PENDING
    assert world.settle([(claim, Failed(Reason.UNAVAILABLE, "450"))]) == [State.SUPPRESSED]


def test_a_no_that_is_committed_before_a_claim_begins_stops_the_send(tmp_path: Path) -> None:
    """Two processes with a store of their own each, at once: what was answered as taken back is never
    claimed, what was claimed is answered as on its way, and nothing is both or neither."""
    world = World(policy=news(), path=str(tmp_path / "store.db"))
    rounds = 30
    for number in range(rounds):
        world.schedule(f"r-{number}", to=f"c{number}@example.com")
    world.pass_()
    keys = {world.key(f"r-{number}", Channel.EMAIL) for number in range(rounds)}
    tags = [world.tag(Channel.EMAIL, f"c{number}@example.com") for number in range(rounds)]
    claiming, refusing = world.another_store(), world.another_store()
    barrier = threading.Barrier(2)
    claimed: list[str] = []
    answered: dict[str, Word] = {}
    errors: list[BaseException] = []

    def one(tx: Tx) -> list[str]:
        through = world.policy.accounts[MAIL]
        found = claimer.claim(
            tx, through, world.policy, process="w-1", secret=claiming.secret, lead_us=2_000, most=1
        )
        return [claim.key for claim in found.claims]

    def claims() -> None:
        for _ in range(rounds):
            claimed.extend(claiming.write(one).result())

    def refuses() -> None:
        for tag in reversed(tags):  # the claims come from the other end: they meet in the middle
            what = Unsubscription("default", tag, MAIL)
            for answer in consent.unsubscribe(refusing, what, policy=world.policy, actor="a"):
                answered[answer.key] = answer.word

    def run(work: Callable[[], None]) -> None:
        try:
            barrier.wait(30)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (claims, refuses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claiming.close()
    refusing.close()
    assert not errors
    taken_back = {key for key, word in answered.items() if word is Word.SUPPRESSED}
    assert len(claimed) == len(set(claimed))
    assert taken_back.isdisjoint(claimed)
    assert taken_back | set(claimed) == keys
    assert {key: word for key, word in answered.items() if word is not Word.SUPPRESSED} == dict.fromkeys(
        claimed, Word.PENDING
    )


def test_a_no_that_is_committed_between_the_look_of_a_claim_and_its_commit_is_answered_truly(
    tmp_path: Path,
) -> None:
    """The claim has locked its rows and read that nobody said no. Whoever says it now waits for the claim,
    and hears that it may already be sent; nobody is told that it was stopped."""
    world = World(policy=news(), path=str(tmp_path / "store.db"))
    key = world.schedule()
    world.pass_()
    claiming, refusing = world.another_store(), world.another_store()
    looked = threading.Event()
    words: list[Word] = []

    def claim_slowly(tx: Tx) -> bool:
        found = claimer.claim(
            tx,
            world.policy.accounts[MAIL],
            world.policy,
            process="w-1",
            secret=claiming.secret,
            lead_us=2_000,
        )
        looked.set()
        return bool(found.claims)

    def refuse() -> None:
        assert looked.wait(30)
        answers = consent.unsubscribe(refusing, who(world), policy=world.policy, actor="a")
        words.extend(answer.word for answer in answers)

    thread = threading.Thread(target=refuse)
    thread.start()
    assert claiming.write(claim_slowly).result()
    thread.join()
    claiming.close()
    refusing.close()
    assert words == [Word.PENDING]
    assert world.state(key) is State.SENDING

"""One click ends a category of email: the link that mail carries, its page, and what a "no" takes back."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

from sendonce.core.consent import Kind, NoRecord
from sendonce.core.delivery import Channel
from sendonce.core.lifecycle import State
from sendonce.core.outcome import Failed, Reason
from sendonce.core.policy import CategoryPolicy, Policy
from sendonce.core.unsubscribe import Unsubscription, unsubscribe_token
from sendonce.pipeline import consent
from sendonce.ports.provider import EmailContent
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


def test_a_no_that_is_committed_before_a_claim_begins_stops_the_send() -> None:
    """Many times, on two connections at once: what was answered as taken back is never claimed, what was
    claimed is answered as on its way, and nothing is both."""
    world = World(policy=news())
    rounds = 25
    for number in range(rounds):
        address = f"c{number}@example.com"
        world.schedule(f"r-{number}", to=address)
    world.pass_()
    barrier = threading.Barrier(2)
    claimed: list[str] = []
    answered: dict[str, Word] = {}
    errors: list[BaseException] = []

    def claims() -> None:
        try:
            barrier.wait(30)
            while len(claimed) + sum(word is Word.SUPPRESSED for word in answered.values()) < rounds:
                claimed.extend(claim.key for claim in world.claim(MAIL, most=1))
        except BaseException as error:
            errors.append(error)

    def refuses() -> None:
        try:
            barrier.wait(30)
            for number in range(rounds):
                what = Unsubscription("default", world.tag(Channel.EMAIL, f"c{number}@example.com"), MAIL)
                for answer in consent.unsubscribe(world.store, what, policy=world.policy, actor="a"):
                    answered[answer.key] = answer.word
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=each) for each in (claims, refuses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    taken_back = {key for key, word in answered.items() if word is Word.SUPPRESSED}
    assert taken_back.isdisjoint(claimed)
    assert taken_back | set(claimed) == {world.key(f"r-{n}", Channel.EMAIL) for n in range(rounds)}
    assert all(answered.get(key) is Word.PENDING for key in claimed)

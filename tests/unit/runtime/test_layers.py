"""On what the next memory of a machine stands: on what is kept, not too deep, never on nothing."""

from __future__ import annotations

from cloister.runtime.microvm.layers import HEAD, MOST_LAYERS, ZEROS, Layer, Standing

PAGE = 4096


def heads(*pages: int) -> bytes:
    return b"".join(HEAD.pack(page * PAGE, PAGE) for page in pages)


BEGUN = Standing((Layer("machine"),), began_from_lowest=True)
THREE = Standing((Layer("machine"), Layer("one", heads(1, 2)), Layer("two", heads(3))), heads(9))


def test_a_machine_that_began_stands_on_what_it_began_from_kept_or_not() -> None:
    for is_kept in (lambda name: True, lambda name: False):
        assert BEGUN.next_over(is_kept) == BEGUN


def test_what_changed_stands_on_the_layer_it_was_kept_as() -> None:
    assert Standing(THREE.layers[:2], heads(3)).kept_as("two").layers == THREE.layers
    assert THREE.next_over(lambda name: True) == THREE


def test_what_was_in_a_layer_that_is_gone_is_written_again() -> None:
    over = THREE.next_over(lambda name: name != "one")
    # One above it cannot be read without it.
    assert over == Standing(THREE.layers[:1], heads(1, 2, 3, 9))
    over = THREE.next_over(lambda name: name != "two")
    assert over == Standing(THREE.layers[:2], heads(3, 9))


def test_without_the_lowest_all_of_memory_is_written() -> None:
    assert THREE.next_over(lambda name: name != "machine").layers == ()


def test_layers_do_not_become_too_many() -> None:
    standing = BEGUN
    for number in range(1, MOST_LAYERS):
        assert len(standing.next_over(lambda name: True).layers) == number
        standing = Standing(standing.layers, heads(number)).kept_as(str(number))
    over = standing.next_over(lambda name: True)
    assert over.layers == BEGUN.layers
    assert over.beyond == heads(*range(1, MOST_LAYERS))


def test_layers_that_say_the_same_again_and_again_are_made_one() -> None:
    zeros = HEAD.pack(PAGE, PAGE | ZEROS)
    twice = Standing((Layer("machine"), Layer("one", heads(1)), Layer("two", zeros)))
    assert twice.next_over(lambda name: True) == twice
    thrice = Standing((*twice.layers, Layer("three", heads(1))))
    assert thrice.next_over(lambda name: True).layers == BEGUN.layers

"""A served API with a door that can lose answers, for each recipe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.api_world import Api, served
from tests.neighbours.door import Door, door_to


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with served(tmp_path_factory.mktemp("api")) as made:
        yield made


@pytest.fixture(scope="module")
def door(api: Api) -> Iterator[Door]:
    with door_to(api.port) as made:
        yield made

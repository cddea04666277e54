"""Cases of the way in, which `tests/unit` proves on the embedded store, once more on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.postgres_schemas import OpenStores
from tests.unit.test_cancel import (
    test_an_appointment_that_moves_goes_once_at_its_new_time as test_canc_05_moved,
)
from tests.unit.test_cancel import test_selections as test_canc_05_selections
from tests.unit.test_cancel import test_the_answer_is_true_at_every_stage as test_canc_01
from tests.unit.test_consent_stage import (
    test_an_opt_out_takes_back_the_open_deliveries_of_its_address as test_canc_07,
)
from tests.unit.test_importer import (
    test_a_file_may_have_a_name_that_no_store_can_hold as test_cont_15_file,
)
from tests.unit.test_importer import test_people_with_other_capitals_are_one as test_api_03_file
from tests.unit.test_intake import (
    test_other_content_is_a_conflict_that_names_the_fields as test_api_07,
)
from tests.unit.test_intake import test_plus_addresses_are_kept_and_never_merged as test_cont_09
from tests.unit.test_intake import test_pressing_twice_sends_once as test_api_11
from tests.unit.test_intake import test_spellings_of_one_number_are_one as test_cont_07
from tests.unit.test_intake import (
    test_the_same_person_with_other_capitals_is_one as test_api_03,
)
from tests.way_in import WayIn

__all__ = (
    "test_api_03",
    "test_api_03_file",
    "test_api_07",
    "test_api_11",
    "test_canc_01",
    "test_canc_05_moved",
    "test_canc_05_selections",
    "test_canc_07",
    "test_cont_07",
    "test_cont_09",
    "test_cont_15_file",
)


class OnPostgres(WayIn):
    def __init__(self, stores: OpenStores) -> None:
        self._stores = stores
        super().__init__()

    def opened(self) -> Any:
        self.taken = self._stores.take(self.clock)
        return self.taken.store


@pytest.fixture
def way_in(postgres_stores: OpenStores) -> Iterator[WayIn]:
    made = OnPostgres(postgres_stores)
    yield made
    postgres_stores.give_back(made.taken)

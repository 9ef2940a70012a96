"""Registries of the run and budget stores, by kind of backend."""

from __future__ import annotations

from vibe_llms.runs.accounts import BudgetStore
from vibe_llms.runs.interfaces import RunStore
from vibe_llms.storage.backends import Backend, StoreKind

RUN_STORES: StoreKind[RunStore] = StoreKind("runs")
BUDGET_STORES: StoreKind[BudgetStore] = StoreKind("budgets")


@RUN_STORES.register("home")
def _produce_home_runs(backend: Backend) -> RunStore:
    from vibe_llms.runs.sqlite import produce_store

    return produce_store(backend)


@RUN_STORES.register("postgres")
def _produce_postgres_runs(backend: Backend) -> RunStore:
    from vibe_llms.runs.postgres import produce_store

    return produce_store(backend)


@BUDGET_STORES.register("home")
def _produce_home_budgets(backend: Backend) -> BudgetStore:
    from vibe_llms.runs.sqlite_budgets import produce_store

    return produce_store(backend)


@BUDGET_STORES.register("postgres")
def _produce_postgres_budgets(backend: Backend) -> BudgetStore:
    from vibe_llms.runs.postgres_budgets import produce_store

    return produce_store(backend)

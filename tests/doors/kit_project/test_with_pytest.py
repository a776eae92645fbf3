"""For pytest: the fixtures of the plugin."""

import pytest
from invoices import tasks
from invoices.models import Invoice


@pytest.mark.parametrize("number", range(4))
def test_jobs_of_a_view(pgqueue, number):
    with pgqueue.capture_jobs() as jobs:
        tasks.make_invoice(number)
    assert len(jobs) == 2
    pgqueue.assert_enqueued(tasks.charge, args=[number], count=1)
    assert [ran.state for ran in pgqueue.run_jobs()] == ["succeeded"]
    pgqueue.travel(days=7)
    pgqueue.travel(days=7)
    assert tasks.remind.path in [ran.task for ran in pgqueue.run_jobs()]
    pgqueue.assert_not_enqueued(tasks.bill)


@pytest.mark.parametrize("number", range(4))
def test_travelling_ended_with_the_test_before(pgqueue, number):
    tasks.make_invoice(number)
    assert [ran.task for ran in pgqueue.run_jobs()] == [tasks.charge.path]


def test_eager(pgqueue):
    ran = pgqueue.eager()
    tasks.make_invoice(7)
    assert [one.task for one in ran] == [tasks.charge.path]
    assert Invoice.objects.get().is_paid


def test_eager_ended_with_the_test_before(pgqueue):
    tasks.make_invoice(7)
    assert not Invoice.objects.get().is_paid


@pytest.mark.parametrize("number", range(4))
def test_a_real_worker(pgqueue_worker, number):
    running = pgqueue_worker(concurrency=2)
    tasks.make_invoice(number)
    running.wait_until_idle()
    assert Invoice.objects.get(number=number).is_paid


def test_a_worker_and_the_kit(pgqueue_worker, pgqueue):
    running = pgqueue_worker()
    tasks.make_invoice(7)
    pgqueue.travel(days=14)
    (job,) = pgqueue.assert_enqueued(tasks.remind)
    running.wait_for(job)

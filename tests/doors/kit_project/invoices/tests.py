"""For Django's own runner. Each class twice, so that --parallel has something to hand out."""

from datetime import timedelta

from django.db import connection
from django.test import TestCase, TransactionTestCase

from pgqueue_django.testing import (
    assert_enqueued,
    assert_not_enqueued,
    capture_jobs,
    eager,
    run_jobs,
    travel,
    worker,
)

from . import tasks
from .models import Invoice


class PlainTests(TestCase):
    databases = "__all__"

    def test_what_a_view_enqueues(self) -> None:
        with capture_jobs() as jobs:
            tasks.make_invoice(7)
        self.assertEqual([job.task for job in jobs], ["invoices.tasks.charge", "invoices.tasks.remind"])
        assert_enqueued(tasks.charge, args=[7], queue_name="billing", count=1)
        assert_enqueued(tasks.remind, args=[7], run_after=timedelta(days=14))
        assert_not_enqueued(tasks.bill)

    def test_jobs_run_in_the_transaction_of_the_test(self) -> None:
        session = connection.connection
        tasks.make_invoice(7)
        tasks.bill.enqueue(8)
        tasks.bill_atomically.enqueue(9)
        tasks.bill_atomically.using(max_attempts=1).enqueue(9)
        states = [ran.state for ran in run_jobs()]
        self.assertEqual(sorted(states), ["dead", "succeeded", "succeeded", "succeeded"])
        self.assertEqual(list(Invoice.objects.order_by("number").values_list("number", flat=True)), [7, 8, 9])
        self.assertTrue(Invoice.objects.get(number=7).is_paid)
        self.assertIs(connection.connection, session)

    def test_retries_at_once_or_after_their_backoff(self) -> None:
        Invoice.objects.create(number=7)
        tasks.charge.enqueue(7, busy_until=3)
        self.assertEqual([ran.state for ran in run_jobs()], ["retrying"])
        with travel(minutes=2):
            self.assertEqual([ran.state for ran in run_jobs()], ["retrying"])
        self.assertEqual([ran.state for ran in run_jobs(retries=True)], ["succeeded"])
        tasks.charge.enqueue(7, busy_until=3)
        with self.assertRaises(tasks.Busy):
            run_jobs(raise_errors=True)

    def test_two_weeks_later(self) -> None:
        tasks.make_invoice(7)
        run_jobs()
        with travel(days=14):
            run_jobs(schedules=False)
        self.assertEqual(Invoice.objects.get().reminders, 1)

    def test_every_night(self) -> None:
        Invoice.objects.create(number=7)
        with travel() as clock:
            for _ in range(3):
                clock.forward(days=1)
                run_jobs()
        self.assertEqual(Invoice.objects.get().reminders, 3)

    def test_eager(self) -> None:
        with eager(raise_errors=True):
            tasks.make_invoice(7)
            self.assertTrue(Invoice.objects.get().is_paid)

    def test_after_the_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            tasks.make_invoice_later(7)
            assert_not_enqueued(tasks.charge)
        run_jobs()
        self.assertTrue(Invoice.objects.get().is_paid)


class OtherPlainTests(PlainTests):
    pass


class CommittingTests(TransactionTestCase):
    databases = "__all__"

    def test_a_real_worker(self) -> None:
        with worker(concurrency=2) as running:
            tasks.make_invoice(7)
            job = tasks.bill.enqueue(8)
            self.assertEqual(running.wait_for(job).attempts, 1)
            running.wait_until_idle()
            self.assertTrue(Invoice.objects.get(number=7).is_paid)
            with travel(days=14):
                running.wait_for(assert_enqueued(tasks.remind)[0])

    def test_without_one(self) -> None:
        tasks.make_invoice(7)
        run_jobs()
        self.assertTrue(Invoice.objects.get(number=7).is_paid)


class OtherCommittingTests(CommittingTests):
    pass

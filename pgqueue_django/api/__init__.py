"""The JSON API: jobs, queues, workers, schedules and tasks over HTTP, for those who may. See docs/http.md."""

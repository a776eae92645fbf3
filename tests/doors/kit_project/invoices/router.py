"""Jobs in a database of their own."""


class Router:
    def db_for_read(self, model, **hints):
        return "jobs" if model._meta.app_label == "pgqueue_django" else "default"

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        return (app_label == "pgqueue_django") == (db == "jobs")

from django.urls import path

from control.billing.usage.views import CompletionsUsageView, CostsView, LedgerView, UsageView

urlpatterns = [
    path("usage", UsageView.as_view()),
    path("usage/ledger", LedgerView.as_view()),
    path("organization/usage/completions", CompletionsUsageView.as_view()),
    path("organization/costs", CostsView.as_view()),
]

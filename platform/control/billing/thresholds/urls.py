from django.urls import path

from control.billing.thresholds.views import ThresholdsView

urlpatterns = [path("spending_thresholds", ThresholdsView.as_view())]

from django.urls import path

from control.models.base_speculators.views import BaseSpeculatorsView

urlpatterns = [path("base_speculators", BaseSpeculatorsView.as_view())]

from django.contrib import admin
from django.urls import path

from control.console.views import speculator_plot

urlpatterns = [
    path("speculators/<str:speculator_id>/plot", admin.site.admin_view(speculator_plot), name="speculator-plot"),
]

"""Routes below /v1/."""

from django.urls import path

from control.queue.devices.views import HardwareView

urlpatterns = [path("hardware", HardwareView.as_view())]

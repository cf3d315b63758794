from django.urls import path

from control.serving.gateway import views
from control.serving.gateway.wire import WIRES

urlpatterns = [path(route.removeprefix("/v1/"), views.generate) for route in WIRES]

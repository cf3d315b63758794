from django.urls import path

from control.tenants.events.views import EventsView, EventView

urlpatterns = [
    path("events", EventsView.as_view()),
    path("events/<str:event_id>", EventView.as_view()),
]

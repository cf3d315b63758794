from django.urls import path

from control.tenants.webhooks import views

urlpatterns = [
    path("webhook_endpoints", views.EndpointsView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>", views.EndpointView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/rotate_secret", views.EndpointRotateView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/test", views.EndpointTestView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/deliveries", views.DeliveriesView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/deliveries/<str:delivery_id>", views.DeliveryView.as_view()),
    path("webhook_endpoints/<str:endpoint_id>/deliveries/<str:delivery_id>/replay", views.DeliveryReplayView.as_view()),
]

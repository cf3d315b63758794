from django.urls import path

from control.workflows.offboarding import views

urlpatterns = [
    path("organization/exports", views.OrganizationExportsView.as_view()),
    path("organization/exports/<str:export_id>", views.OrganizationExportView.as_view()),
    path("organization/exports/<str:export_id>/content", views.OrganizationExportContentView.as_view()),
    path("organization/deletion", views.OrganizationDeletionView.as_view()),
]

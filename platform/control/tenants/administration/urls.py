from django.urls import path

from control.tenants.administration import views

urlpatterns = [
    path("api_keys", views.ApiKeysView.as_view()),
    path("api_keys/<str:key_id>", views.ApiKeyView.as_view()),
    path("api_keys/<str:key_id>/rotate", views.ApiKeyRotateView.as_view()),
    path("members", views.MembersView.as_view()),
    path("members/<str:member_id>", views.MemberView.as_view()),
    path("members/<str:member_id>/invitation", views.MemberInvitationView.as_view()),
    path("storage", views.StorageView.as_view()),
    path("projects", views.ProjectsView.as_view()),
    path("projects/<str:project_id>", views.ProjectView.as_view()),
    path("projects/<str:project_id>/archive", views.ProjectArchiveView.as_view()),
]

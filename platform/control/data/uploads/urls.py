from django.urls import path

from control.data.uploads.views import OneUploadView, UploadCancelView, UploadCompleteView, UploadPartsView, UploadsView

urlpatterns = [
    path("uploads", UploadsView.as_view()),
    path("uploads/<str:upload_id>", OneUploadView.as_view()),
    path("uploads/<str:upload_id>/parts", UploadPartsView.as_view()),
    path("uploads/<str:upload_id>/complete", UploadCompleteView.as_view()),
    path("uploads/<str:upload_id>/cancel", UploadCancelView.as_view()),
]

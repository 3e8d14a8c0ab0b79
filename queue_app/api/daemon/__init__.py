"""The daemon protocol over HTTP, one file a resource. Plain views over msgspec: a hundredth of a serializer's cost."""

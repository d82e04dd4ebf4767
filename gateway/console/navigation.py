"""The sections of the console, in the order in which they are shown."""

from gateway.console.routes import NavigationEntry

NAVIGATION = (
    NavigationEntry("Overview", "/overview"),
    NavigationEntry("Tenants", "/tenants"),
    NavigationEntry("Classes", "/classes"),
    NavigationEntry("Queue", "/queue"),
    NavigationEntry("Denials", "/denials"),
    NavigationEntry("Usage", "/usage"),
    NavigationEntry("Audit", "/audit", is_platform=True),
    NavigationEntry("Platform keys", "/platform-keys", is_platform=True),
    NavigationEntry("Settings", "/settings", is_platform=True),
)

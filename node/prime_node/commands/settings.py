"""`prime-node config show`: every setting that `start` would use, and where it came from. Secrets stay hidden."""

from prime_node.arguments import FOLDER_VARIABLE
from prime_node.commands.context import Context
from prime_node.home import PINNED, Home, read_pins
from prime_runtime.settings import DEFAULT, list_values


def show(context: Context) -> int:
    resolved = context.resolve()
    pins, rows = read_pins(resolved.config), []
    for key, value, source in list_values(resolved):
        if key == "folder" and context.args.folder is None:
            source = FOLDER_VARIABLE if context.variables.get(FOLDER_VARIABLE) else DEFAULT
        if key in PINNED and source == DEFAULT and key in pins:
            value, source = pins[key], str(Home(context.folder).run)
        if source != DEFAULT or not context.args.changed:
            rows.append((key, value, source))
    if context.args.json:
        context.screen.print_json([{"setting": key, "value": value, "source": source} for key, value, source in rows])
        return 0
    context.screen.show(context.screen.table(["setting", "value", "from"], rows))
    return 0

"""Build the netCDF tree for a new store, or for additions to an existing store.

The tree consists of groups, shared dimensions, and variables with their arrays.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xarray import conventions

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.encoding.array_nodes import make_node
from xr_nczarr.encoding.names import stored_name, user_attributes
from xr_nczarr.encoding.variables import EncodedVariable, encode_variables
from xr_nczarr.errors import ConflictError, NczarrError, UnsupportedError
from xr_nczarr.formats import Format
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.hierarchy import render_documents
from xr_nczarr.model import ArrayNode, Node, child_path
from xr_nczarr.netcdf import Dimension, Group, Layout, Variable, annotate
from xr_nczarr.netcdf.annotations import is_universal
from xr_nczarr.netcdf.attributes import substitute_type
from xr_nczarr.netcdf.data_model import inherited_dimension
from xr_nczarr.storage import Store
from xr_nczarr.writing.chunk_writes import ArrayWrite
from xr_nczarr.writing.write_plan import WritePlan
from xr_nczarr.writing.write_request import GroupRequest, WriteRequest
from xr_nczarr.writing.write_target import WriteTarget

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tree:
    """A netCDF tree under construction, and the layout in which to store it.

    Attributes
    ----------
    root
        The root group. For an existing store, it contains the existing groups and dimensions, but
        not the existing variables and attributes.
    written
        Mapping from the path of each new array to its encoded variable.
    groups
        Paths of the new groups.
    dropped
        Paths of the variables whose inherited codecs could not be used, each followed by the reason
        in parentheses.
    """

    layout: Layout
    root: Group = field(default_factory=Group)
    written: dict[str, EncodedVariable] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def group(self, path: str) -> Group:
        """Return the group at an absolute path, creating the group and its parents if necessary."""
        group = self.root
        for name in filter(None, path.split("/")):
            if name not in group.groups:
                child = Group(path=child_path(group.path, stored_name(name)), dialect=group.dialect)
                group.groups[name] = child
                self.groups.append(child.path)
            group = group.groups[name]
        return group

    def add_dataset(self, request: GroupRequest) -> None:
        """Encode the dataset of a request, and add it to the tree as a group."""
        variables, attributes = conventions.encode_dataset_coordinates(request.dataset)
        attributes = user_attributes(attributes)
        self.check_single_array(request.path, len(variables), attributes)
        self.group(request.path).attributes.update(attributes)
        encoded = encode_variables(variables, request.encoding, self.layout)
        self.add_variables(request, encoded)

    def check_single_array(self, path: str, count: int, attributes: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if the Zarr version cannot store the group at `path`.

        Zarr version 1 can store only a root group with exactly one variable and no attributes.
        `count` is the number of variables in the group.
        """
        if not self.layout.zarr.has_groups and (count != 1 or path != "/" or attributes):
            raise UnsupportedError(
                f"group {path} has {count} variables and {len(attributes)} attributes; a Zarr "
                "version 1 store can contain only one array, and no groups or group attributes",
                remedy="Write each variable, as xr.Dataset({name: ds[name].variable}), to a "
                "separate store named after the variable. Then open the directory that contains "
                "these stores as one dataset",
            )

    def add_variables(self, request: GroupRequest, encoded: Mapping[str, EncodedVariable]) -> None:
        """Add encoded variables to the group of a request, and create missing dimensions."""
        group = self.group(request.path)
        for name, variable in encoded.items():
            self.add_variable(group, name, variable, (), request.unlimited, request.growing)

    def add_variable(
        self,
        group: Group,
        name: str,
        variable: EncodedVariable,
        dimensions: Sequence[Dimension],
        unlimited: Collection[str],
        growing: Collection[str],
    ) -> str:
        """Add a variable to a group, and return the path of its array.

        Parameters
        ----------
        dimensions
            The leading dimensions of the variable. The remaining dimensions are looked up by name,
            and created if they do not exist.
        unlimited
            Names of the dimensions to create as unlimited.
        growing
            Names of further dimensions along which the array may grow. They affect the choice of
            chunks.
        """
        sizes = [*zip(variable.dimensions, variable.data.shape, strict=True)][len(dimensions) :]
        trailing = [self.dimension(group, dim, size, dim in unlimited) for dim, size in sizes]
        dimensions = (*dimensions, *trailing)
        location = child_path(group.path, name) if self.layout.zarr.has_groups else "/"
        grows = [dim.unlimited or dim.name in growing for dim in dimensions]
        node, change, dropped = make_node(
            variable,
            location,
            self.layout,
            grows,
            allow_longer=len(grows) == 1
            and grows[0]
            and (dimensions[0].unlimited or variable.dimensions == (name,)),
        )
        within = f" in shards {node.shards[0].shape}" if node.shards else ""
        level = logging.INFO if change else logging.DEBUG
        _log.log(
            level, "%s: %schunks %s%s", location, change and f"{change}: ", node.chunk_shape, within
        )
        if dropped:
            self.dropped.append(f"{location} ({dropped})")
        group.variables[name] = Variable(
            path=location,
            name=name,
            dimensions=dimensions,
            node=node,
            attributes=variable.attributes,
            kind=variable.kind,
        )
        self.written[location] = variable
        return location

    def hierarchy(self) -> Hierarchy:
        """Return the Zarr hierarchy that stores this tree."""
        return annotate(self.root, self.layout)

    def writes(self, hierarchy: Hierarchy) -> list[ArrayWrite]:
        """Return an `ArrayWrite` for each new variable, using the array nodes in `hierarchy`."""
        writes = []
        for path, variable in self.written.items():
            node = hierarchy.nodes[path]
            assert isinstance(node, ArrayNode)
            region = tuple([slice(0, size) for size in variable.data.shape])
            empty = variable.encoding.get("write_empty_chunks")
            writes.append(ArrayWrite(node, region, variable.data, write_empty_chunks=empty))
        return writes

    def report_changes(self) -> None:
        """Warn about dropped codecs, and log attributes that are stored with a different type."""
        retyped = [] if self.layout.is_plain_zarr else [*self._retyped_attributes()]
        if retyped:
            _log.warning(
                "NCZarr does not support the types of these attributes, so they are stored with "
                "other types: %s",
                ", ".join(retyped),
            )
        if self.dropped:
            warnings.warn(
                f"codecs inherited from the source were dropped for {'; '.join(self.dropped)}. "
                "Choose other codecs with encoding= (to_nczarr) or codecs= (copy)",
                stacklevel=5,
            )

    def _retyped_attributes(self) -> Iterator[str]:
        """Yield a description of each attribute whose type NCZarr does not support."""
        for group in self.root.walk():
            holders: list[Group | Variable] = [group, *group.variables.values()]
            for holder in holders:
                for name, value in holder.attributes.items():
                    kind = "" if name == "_FillValue" else substitute_type(value)
                    if kind:
                        yield f"{name} of {holder.path} ({type(value).__name__} as {kind})"

    def dimension(self, group: Group, name: str, size: int, unlimited: bool) -> Dimension:
        """Return the dimension with this name and size, and create it in the group if necessary.

        A dimension that the group inherits is returned if its size matches. Otherwise, the new
        dimension hides it.

        Raises
        ------
        ConflictError
            If the group itself defines a dimension with the same name but a different size.
        """
        existing = group.dimensions.get(name)
        if existing is not None:
            if existing.size != size:
                raise ConflictError(
                    f"a variable has {size} elements along dimension {existing.path}; "
                    f"expected {existing.size}",
                    remedy="Rename the dimension, or append along the existing one",
                )
            return existing
        inherited = inherited_dimension(name, size, group.path, self.root)
        if inherited is not None:
            return inherited
        dimension = Dimension(name, child_path(group.path, name), size, unlimited)
        group.dimensions[name] = dimension
        return dimension


def tree_within(opened: OpenedStore, requested: Layout) -> Tree:
    """Return an initial tree for additions to an existing store.

    The layout is `requested`, except that the Zarr version and the dialect are those of the store.
    If the dialect of the store is ``nczarr-preview``, the additions have the dialect ``nczarr``.
    """
    hierarchy, root, dialect = opened.hierarchy, _skeleton(opened.root), opened.root.dialect
    if dialect == "nczarr-preview":
        dialect = "nczarr"
    elif is_universal(hierarchy.nodes["/"]):
        dialect = "universal"
    return Tree(replace(requested, zarr=hierarchy.zarr, dialect=dialect), root)


def _skeleton(root: Group) -> Group:
    """Return a copy of a group and its subgroups, without their variables and attributes."""
    return replace(
        root,
        dimensions=dict(root.dimensions),
        variables={},
        attributes={},
        groups={name: _skeleton(group) for name, group in root.groups.items()},
    )


def plan_creation(request: WriteRequest, target: WriteTarget) -> WritePlan:
    """Return the plan for creating a store that replaces everything in the target."""
    tree = Tree(request.layout)
    for group in request.groups:
        tree.add_dataset(group)
    plan = plan_tree(tree, target.store)
    plan.exclusive = not request.replaces_store and target.names == ([], [])
    return plan


def plan_tree(tree: Tree, store: Store) -> WritePlan:
    """Return the plan for writing a tree to `store` as a new store.

    The tree replaces everything that `store` contains.
    """
    hierarchy, zarr, consolidated = tree.hierarchy(), tree.layout.zarr, tree.layout.consolidated
    if consolidated is None:
        consolidated = zarr.consolidated_by_default
    check_names(store, zarr, hierarchy.nodes)
    documents = render_documents(hierarchy, consolidated=consolidated)
    tree.report_changes()
    return WritePlan(zarr, tree.writes(hierarchy), documents, new=True)


def check_names(
    store: Store, zarr: Format, added: Mapping[str, Node], kept: Iterable[str] = ()
) -> None:
    """Raise an error if the file system cannot store the names of new nodes.

    Parameters
    ----------
    added
        Maps the paths of the new nodes to the nodes.
    kept
        Paths of the stored nodes that remain in the store.

    Raises
    ------
    RefusedError
        If a name is not a valid file name, or looks like the name of a temporary file.
    ConflictError
        If two names differ only in case or Unicode normalization, and the file system treats them
        as equal.
    """
    keys = {
        key: path for path in added for key in (*zarr.node_keys(path), zarr.chunk_keys(path).scalar)
    }
    existing = (key for path in kept for key in zarr.node_keys(path))
    try:
        store.check_new_keys(keys, existing)
    except NczarrError as error:
        path = keys.get(error.key or "")
        if path is not None and isinstance(added[path], ArrayNode):
            error.add_context(variable=path)
        raise

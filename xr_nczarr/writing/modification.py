"""Plan appends, region writes and overwrites, and check whether they fit the existing store."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from xarray import Dataset, Variable, conventions

from xr_nczarr.backend.opened_encoding import xarray_attributes
from xr_nczarr.backend.stored_group import StoredGroup
from xr_nczarr.dataset import OpenedStore
from xr_nczarr.encoding.names import user_attributes
from xr_nczarr.encoding.stored_variables import decode_stored, encode_as_stored
from xr_nczarr.encoding.variables import encode_variables
from xr_nczarr.errors import ConflictError, ErrorContext, NotFoundError, UnsupportedError
from xr_nczarr.formats.format import Change
from xr_nczarr.hierarchy import (
    children_first,
    edit_documents,
    refresh_consolidated,
    with_stored_separator,
)
from xr_nczarr.model import ArrayNode, BrokenNode, GroupNode, node_name, parent_path, paths_above
from xr_nczarr.netcdf import Dimension, Group
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.annotate import attribute_changes, dimension_changes, listing_changes
from xr_nczarr.netcdf.annotations import BY_DIALECT, is_universal
from xr_nczarr.writing.builder import Tree, check_names, tree_within
from xr_nczarr.writing.chunk_writes import ArrayWrite
from xr_nczarr.writing.lazy_sources import (
    check_sources_unchanged,
    find_unchanged,
)
from xr_nczarr.writing.placement import (
    check_beyond_end,
    check_coordinate,
    check_equal,
    check_shared_objects,
    check_within_array,
    resolve_region,
    slices_to_write,
)
from xr_nczarr.writing.widening import plan_widening, with_width
from xr_nczarr.writing.write_options import WriteOptions
from xr_nczarr.writing.write_plan import WritePlan
from xr_nczarr.writing.write_request import GroupRequest, WriteRequest
from xr_nczarr.writing.write_target import check_no_documents, exists_error


def plan_modification(request: WriteRequest, opened: OpenedStore) -> WritePlan:
    """Check that a request fits an existing store, and return the plan for carrying it out.

    Raises
    ------
    ExistsError
        If the group exists and the mode is ``"w-"``.
    UnsupportedError
        If the store uses a variant of its Zarr version for which writing is not supported.
    ConflictError
        If the new data or metadata conflicts with the existing store.
    """
    nodes, path, mode = opened.hierarchy.nodes, request.path, request.options.mode
    paths = [path] if mode == "w" else [group.path for group in request.groups]
    required = {above for group in paths for above in paths_above(group)} - {"/"}
    for variable in opened.root.all_variables():
        if variable.path in required:
            raise ConflictError(
                f"{variable.path} is a variable, not a group",
                remedy="Choose another name",
                store=opened.store.name,
            )
    groups = {group for group, node in nodes.items() if isinstance(node, GroupNode)} | {"/"}
    if mode == "w-" and path in groups:
        raise exists_error(opened.store, path)
    opened.hierarchy.zarr.check_writable()
    replaced = {node for node in nodes if path in paths_above(node)} if mode == "w" else set()
    tree = tree_within(opened, request.layout)
    if mode == "w":
        tree.group(parent_path(path)).groups.pop(node_name(path), None)
    planner = _Planner(
        request=request,
        opened=opened,
        options=request.options,
        plan=WritePlan(opened.hierarchy.zarr),
        tree=tree,
        replaced=replaced,
        kept=groups - replaced,
    )
    return planner.run()


@dataclass(slots=True, kw_only=True)
class _Planner:
    """A planner that collects the changes to an existing store, group by group.

    Attributes
    ----------
    plan
        The plan under construction.
    replaced
        Paths of the stored groups and arrays that mode ``"w"`` replaces.
    kept
        Paths of the stored groups that are not replaced.
    grown
        The dimensions that an append extends, with their new sizes, keyed by path.
    widened
        String arrays that are too narrow, as pairs of the stored node and a wider copy.
    """

    request: WriteRequest
    opened: OpenedStore
    options: WriteOptions
    plan: WritePlan
    tree: Tree
    replaced: set[str]
    kept: set[str]
    grown: dict[str, Dimension] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    widened: list[tuple[ArrayNode, ArrayNode]] = field(default_factory=list)

    def run(self) -> WritePlan:
        unchanged = find_unchanged(self.request, self.opened, self.kept)
        check_sources_unchanged(self.request, self.opened, self.kept, self.replaced, unchanged)
        for request in self.request.groups:
            self._add(request, unchanged)
        return self._finish()

    def _check_can_add(self, new: Collection[str]) -> None:
        """Raise ConflictError if the store is a single array, unless `new` is empty."""
        root = self.opened.hierarchy.nodes["/"]
        if new and not (self.tree.layout.zarr.has_groups and isinstance(root, GroupNode)):
            raise ConflictError(
                f"the store is a single array without groups, and cannot contain {', '.join(new)}",
                remedy="Leave them out, or write them to separate stores",
                store=self.opened.store.name,
            )

    def _check_absent(self, path: str) -> None:
        """Raise an error if a group or an unreadable node is already stored at `path` or above it.

        Paths in `kept` and `replaced` are not checked.
        """
        nodes, new = self.opened.hierarchy.nodes, list[str]()
        while path not in self.kept:
            if isinstance(node := nodes.get(path), BrokenNode) and path not in self.replaced:
                raise node.error.add_context(store=self.opened.store.name)
            if path not in self.replaced and path not in self.tree.groups:
                new.append(path)
            path = parent_path(path)
        check_no_documents(self.opened, new)

    def _add(self, request: GroupRequest, unchanged: Collection[tuple[str, str]]) -> None:
        path, dataset, encoding = request.path, request.dataset, request.encoding
        if path not in self.kept:
            mode, appends = self.options.mode, self.options.append_dim is not None
            if mode == "r+" or appends or self.options.region is not None:
                error = NotFoundError if mode == "r+" else ConflictError
                raise error(
                    f"unknown group {path!r}",
                    remedy="Add the group first with mode='a'",
                    store=self.opened.store.name,
                )
            self._check_can_add([path])
            self._check_absent(path)
            self.tree.add_dataset(request)
            return
        group = self.opened.group(path)
        stored = decode_stored(StoredGroup(self.opened, group, None), dataset)
        region: Mapping[str, slice] = {}
        # In a DataTree, a group without variables only contains other groups.
        if self.options.region is not None and (dataset.variables or len(self.request.groups) == 1):
            region = resolve_region(
                dataset,
                self.options.region,
                stored,
                self.options.append_dim,
                coordinates=request.coordinates,
                stored_coordinates=self._stored_coordinates(request),
            )
            dataset = dataset.drop_vars(list(dataset.indexes))
        new = self._new_variables(group, dataset, encoding, stored)
        if self.options.append_dim is not None:
            self._check_append(group, dataset, new, stored, self.options.append_dim)
        variables, attributes = conventions.encode_dataset_coordinates(dataset)
        for name in map(str, dataset.variables):
            if name in stored and (path, name) not in unchanged:
                existing = group.variables[name]
                with ErrorContext(variable=existing.path):
                    self._plan_variable(existing, variables[name], stored[name], region)
        if new:
            # xarray would drop units that new bounds share with their coordinate. These units can
            # differ from those in the store, so stored coordinates are left out.
            added = {key: value for key, value in variables.items() if str(key) in new}
            encoded = encode_variables(added, encoding, self.tree.layout)
            self.tree.add_variables(request, encoded)
        node = self.opened.hierarchy.nodes[path]
        if self.options.mode in ("a", "a-"):
            attributes = user_attributes(attributes)
            self._check_can_add([f"the attribute {name}" for name in attributes])
            changes = [*attribute_changes(node, xarray_attributes(group), attributes)]
            changed = {change.member[0] for change in changes if change.member}
            # The tree only passes these attributes to `report_changes`.
            self.tree.group(path).attributes = {
                name: value for name, value in attributes.items() if name in changed
            }
            self.changes += changes

    def _stored_coordinates(self, request: GroupRequest) -> dict[str, Variable]:
        """Decode the stored dimension coordinates of a group, including those it inherits.

        The result is empty if no slice of the region is ``"auto"``.
        """
        region, stored = self.options.region, dict[str, Variable]()
        if isinstance(region, Mapping) and "auto" not in region.values():
            return stored
        new = Dataset(coords=request.coordinates)
        for path in reversed(paths_above(request.path)):
            decoded = decode_stored(StoredGroup(self.opened, self.opened.group(path), None), new)
            stored |= {name: item for name, item in decoded.items() if item.dims == (name,)}
        return stored

    def _new_variables(
        self,
        group: Group,
        dataset: Dataset,
        encoding: Mapping[str, Any],
        stored: Mapping[str, Variable],
    ) -> list[str]:
        """Return the names of the variables that the dataset adds to a stored group.

        Raise ConflictError if they cannot be added, or if `encoding` contains a stored variable.
        """
        for name in encoding:
            if name in stored:
                raise ConflictError(
                    f"variable {name!r} already exists, but encoding was provided; the encoding of "
                    "a stored variable cannot be changed"
                )
        new = [name for name in map(str, dataset.variables) if name not in stored]
        if new and (self.options.mode == "r+" or self.options.region is not None):
            raise ConflictError(
                f"dataset contains non-pre-existing variables {new!r}, which is not allowed with"
                " mode='r+' or region",
                remedy="Add these variables first with mode='a'",
            )
        self._check_can_add(new)
        groups = [group.groups[name].path for name in new if name in group.groups]
        if groups:
            raise ConflictError(
                f"{groups[0]} is a group, not a variable",
                remedy="Choose another name",
                store=self.opened.store.name,
            )
        return new

    def _check_append(
        self,
        group: Group,
        dataset: Dataset,
        added: Collection[str],
        stored: Mapping[str, Variable],
        dim: str,
    ) -> None:
        """Raise ConflictError if a group cannot be extended along `dim`."""
        visible = self.opened.visible_dimensions(group.path)
        if dim not in visible:
            raise ConflictError(
                f"append_dim={dim!r} does not match any existing dataset dimensions {list(visible)}"
            )
        strays = [name for name in added if dim in dataset[name].dims]
        if strays:
            raise ConflictError(
                f"the new variables {strays} lack values for the {visible[dim].size} elements "
                f"already stored along dimension {dim!r}",
                remedy="Leave out these variables, or write to a new store",
            )
        coordinate = stored.get(dim)
        if (
            coordinate is not None
            and coordinate.dims == (dim,)
            and not self.options.allow_duplicates
        ):
            node = group.variables[dim].node
            assert node is not None
            size, object_size = visible[dim].size, node.object_shape[0]
            # The coordinate values are checked just before anything is written.
            self.plan.checks.append(
                partial(check_coordinate, dim, coordinate, dataset[dim].variable, size, object_size)
            )

    def _plan_variable(
        self,
        existing: NetcdfVariable,
        new: Variable,
        stored: Variable,
        region: Mapping[str, slice],
    ) -> None:
        """Add the new values of a stored variable to the plan.

        `new` and `stored` are decoded. Dimensions that are not in `region` are written in full.
        """
        dim, name, node = self.options.append_dim, existing.name, existing.node
        assert node is not None
        if node.chunk_runs:
            raise UnsupportedError(
                "writing to a stored array with a rectilinear chunk grid is not supported",
                remedy="Write the dataset to a new store",
            )
        pieces = slices_to_write(name, new, stored, region, dim)
        new = new.transpose(*stored.dims)
        if dim is not None and dim not in new.dims:
            if self.options.mode == "a":
                check_equal(name, new, stored)
            return
        node = with_stored_separator(node, self.opened.store)
        whole = self.options.mode != "r+" and not region
        data = encode_as_stored(new, stored, existing, widening=whole and not node.shards)
        if data.dtype.kind == "S" and data.dtype.itemsize > node.dtype.itemsize:
            array = self.opened.hierarchy.nodes[node.path]  # as declared in its metadata document
            assert isinstance(array, ArrayNode)
            array = replace(array, chunk_keys=node.chunk_keys)
            self.widened.append((array, with_width(array, data.dtype.itemsize)))
            node = with_width(node, data.dtype.itemsize)
            data = data.astype(f"S{node.dtype.itemsize}")
        shape = existing.shape or node.shape
        if dim is not None:
            check_beyond_end(existing, self.opened.store)
            axis, size = new.dims.index(dim), pieces[dim].stop
            dimension = existing.dimensions[axis]
            if dimension.path in self.opened.root.outer_dimensions:
                raise ConflictError(
                    f"dimension {dim} is defined outside of this folder, which is part of a larger "
                    "store. Appending here would not extend the dimension in the rest of the store",
                    remedy="Pass the path of the store, and the path of the group as group=",
                    store=self.opened.store.name,
                )
            self.grown[dimension.path] = replace(dimension, size=size)
            shape = (*shape[:axis], size, *shape[axis + 1 :])
        written = tuple([pieces[str(name)] for name in new.dims])
        if not whole:
            check_within_array(node, written)
        elif any(map(operator.gt, shape, node.shape)):
            self.changes.append(Change(node, "members", ("shape",), list(shape)))
        node = replace(node, shape=shape)
        # Encoding adds a dimension for the string length to character variables.
        written += tuple([slice(0, size) for size in data.shape[len(written) :]])
        if self.options.safe_chunks and self.options.mode == "r+" and written:
            check_shared_objects(node, written, self.opened.store)
        empty = new.encoding.get("write_empty_chunks")
        self.plan.writes.append(ArrayWrite(node, written, data, dim is not None, empty))

    def _finish(self) -> WritePlan:
        self._check_all_appended()
        hierarchy, store, plan = self.opened.hierarchy, self.opened.store, self.plan
        zarr = hierarchy.zarr
        kept = [path for path in hierarchy.nodes if path not in self.replaced]
        if self.options.mode == "w":
            group = self.request.path
            chunks = zarr.chunk_keys(group).prefix
            below = {zarr.listing_prefix(group), chunks[: chunks.rindex("/") + 1]}
            # The documents are removed before the chunks. Otherwise, a reader that opens the group
            # during the removal would read fill values.
            removed = [key for path in sorted(self.replaced) for key in zarr.node_keys(path)]
            plan.first = WritePlan(zarr, removed=[*removed, *sorted(below)])
            if hierarchy.consolidated:
                plan.first.documents = refresh_consolidated(hierarchy, kept, {})
        added: list[str] = []
        new = [*self.tree.written, *self.tree.groups]
        if new:
            root = hierarchy.nodes["/"]
            side_by_side = is_universal(root) and BY_DIALECT["nczarr-4.8.1"].group in root.members
            if self.tree.layout.dialect == "nczarr-4.8.0" or side_by_side:
                raise UnsupportedError(
                    f"cannot add {', '.join(new)}: the store uses the netCDF-C 4.8.0 layout or "
                    "an outdated version of the universal layout",
                    remedy="Upgrade the store first with xr_nczarr.upgrade (nczarr upgrade)",
                    store=store.name,
                )
            additions = self.tree.hierarchy()
            # Existing groups and unreadable nodes are not rewritten.
            added = [
                path
                for path in additions.nodes
                if path in self.replaced or path not in hierarchy.nodes
            ]
            check_names(store, zarr, {path: additions.nodes[path] for path in added}, kept)
            for path in sorted(added, key=children_first):
                plan.documents.update(zarr.render_node(additions.nodes[path]))
            plan.writes += self.tree.writes(additions)
        self.tree.report_changes()
        if self.widened:
            plan.first = plan_widening(self.opened, self.widened, self.tree.layout.consolidated)
            documents = {**hierarchy.documents, **plan.first.documents}
            hierarchy = replace(hierarchy, documents=documents)
        plan.only_appends = not new and all(item.member == ("shape",) for item in self.changes)
        changes = [*self.changes, *self._listing_changes(added), *self._dimension_changes()]
        changes.sort(key=lambda change: children_first(change.node.path))
        plan.documents.update(edit_documents(hierarchy, changes))
        if plan.documents and (self.tree.layout.consolidated or hierarchy.consolidated):
            # The documents of new nodes come from the plan, and those of kept nodes from the store.
            plan.documents.update(refresh_consolidated(hierarchy, kept, plan.documents))
        return plan

    def _dimension_changes(self) -> Iterator[Change]:
        for path in self.kept:
            node, stored = self.opened.hierarchy.nodes.get(path), self.opened.group(path).dimensions
            dimensions = [
                self.grown.get(dimension.path, dimension)
                for name, dimension in self.tree.group(path).dimensions.items()
                if name not in stored or dimension.path in self.grown
            ]
            if dimensions and isinstance(node, GroupNode):
                yield from dimension_changes(node, dimensions)

    def _listing_changes(self, added: Collection[str]) -> Iterator[Change]:
        for path in {parent_path(child) for child in added} & self.kept:
            node = self.opened.hierarchy.nodes[path]
            if isinstance(node, GroupNode):
                below = [child for child in added if parent_path(child) == path]
                arrays = [node_name(child) for child in below if child in self.tree.written]
                groups = [node_name(child) for child in below if child not in self.tree.written]
                yield from listing_changes(node, arrays, groups)

    def _check_all_appended(self) -> None:
        """Raise ConflictError unless an append extends all variables with the append dimension.

        The append must extend at least one variable.
        """
        if self.options.append_dim is not None and not self.grown:
            raise ConflictError(
                f"no variable in the dataset has the dimension {self.options.append_dim!r}",
                remedy="Pass a dataset with this dimension, or leave out append_dim",
                store=self.opened.store.name,
            )
        appended = {write.node.path for write in self.plan.writes if write.appended}
        missing = [
            variable.path
            for variable in self.opened.root.all_variables()
            if variable.path not in appended
            and any(dimension.path in self.grown for dimension in variable.dimensions)
        ]
        if missing:
            raise ConflictError(
                f"the stored variables {', '.join(missing)} have dimension "
                f"{self.options.append_dim!r}, but are not in the dataset",
                remedy="Append all variables that have this dimension in one call",
                store=self.opened.store.name,
            )

"""Changing a store that is there: append, region, overwrite; checked before the first byte."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from xarray import Dataset, Variable, conventions
from xarray.coding.times import CFTimedeltaCoder

from xr_nczarr.backend.encoding import xarray_attributes
from xr_nczarr.backend.reader import GroupSource
from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import ConflictError, NotFoundError, Place, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.editing import Change
from xr_nczarr.hierarchy import edit_documents, refresh_consolidated, writable_format
from xr_nczarr.model import BrokenNode, GroupNode, child_path, node_name, parent_path
from xr_nczarr.netcdf import Dimension, Group
from xr_nczarr.netcdf.annotations import BY_DIALECT, is_universal
from xr_nczarr.writing.annotating import attribute_changes, dimension_changes, listing_changes
from xr_nczarr.writing.commit import WriteOptions, WritePlan
from xr_nczarr.writing.datasets import Request
from xr_nczarr.writing.encoded import Layout, encode_dataset, user_attributes
from xr_nczarr.writing.matching import check_coordinate, check_equal, encode_as_stored
from xr_nczarr.writing.placing import Job, check_shared_objects, resolve_region
from xr_nczarr.writing.sources import refuse_reading
from xr_nczarr.writing.target import check_names
from xr_nczarr.writing.tree import Tree, skeleton


def plan_modification(
    opened: OpenedStore, request: Request, layout: Layout, options: WriteOptions
) -> WritePlan:
    """Return all that a change does to a store, checked; nothing is written yet.

    If it has `widths`, stored text has to be made wider first, and the change planned again.

    Raises
    ------
    ConflictError
        For what does not fit what is stored.
    """
    planner = _Planner(opened, request, layout, options)
    for path, dataset in request.datasets.items():
        planner.add(
            path,
            dataset,
            request.encoding[path],
            request.unlimited[path],
            request.growing[path],
        )
    return planner.finish()


@dataclass(slots=True)
class _Planner:
    """The work of one `plan_modification`."""

    opened: OpenedStore
    request: Request
    layout: Layout
    options: WriteOptions
    tree: Tree = field(init=False)
    jobs: list[Job] = field(default_factory=list)
    grown: dict[str, Dimension] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)
    known: set[str] = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.opened.hierarchy.nodes
        self.tree = Tree(_layout_of(self.opened, self.layout), skeleton(self.opened.root))
        self.known = {path for path, node in nodes.items() if isinstance(node, GroupNode)} | {"/"}
        replaced = self.replaced_group
        if replaced is not None:
            self.known = {path for path in self.known if not _is_in(path, replaced)}
            self.tree.group(parent_path(replaced)).groups.pop(node_name(replaced), None)

    @property
    def zarr_format(self) -> str:
        return self.opened.hierarchy.zarr_format

    @property
    def replaced_group(self) -> str | None:
        """The path of a group that goes first, with all below it."""
        return self.request.group if self.options.mode == "w" else None

    def _check_holds(self, new: Collection[str]) -> None:
        """Raise ConflictError for new variables in a store that has no group for them."""
        root = self.opened.hierarchy.nodes["/"]
        if new and not (self.tree.layout.zarr.has_groups and isinstance(root, GroupNode)):
            raise ConflictError(
                f"found {', '.join(new)}, which arrays without a group have no place for",
                remedy="Leave it out, or write variables of other names to stores of their own",
                store=self.opened.store.name,
            )

    def _check_readable(self, path: str) -> None:
        """Refuse a new group at or below one that cannot be read, unless that is replaced."""
        if _is_in(path, self.replaced_group):
            path = parent_path(str(self.replaced_group))
        while path not in self.known:
            node = self.opened.hierarchy.nodes.get(path)
            if isinstance(node, BrokenNode):
                raise node.error.located(store=self.opened.store.name)
            path = parent_path(path)

    def add(
        self,
        path: str,
        dataset: Dataset,
        encoding: Mapping[str, Mapping[str, Any]],
        unlimited: Collection[str],
        growing: Collection[str],
    ) -> None:
        """Plan what becomes of the group at `path`."""
        if path not in self.known:
            if self.options.mode == "r+":
                raise NotFoundError(f"there is no group {path}", store=self.opened.store.name)
            if self.options.append_dim is not None or self.options.region is not None:
                raise ConflictError(f"there is no group {path} to write into")
            self._check_holds([path])
            self._check_readable(path)
            self.tree.add_dataset(path, dataset, encoding, unlimited, growing)
            return
        group = self.opened.group(path)
        stored = self._stored(group, dataset)
        if self.options.region is not None:
            region = resolve_region(dataset, self.options.region, stored, self.options.append_dim)
            dataset = dataset.drop_vars(list(dataset.indexes))
        else:
            region = {}
        new = self._check(group, dataset, encoding, stored)
        variables, attributes = conventions.encode_dataset_coordinates(dataset)
        for name in map(str, dataset.variables):
            if name in stored:
                with Place(variable=child_path(path, name)):
                    self._write(group, name, variables[name], stored[name], region)
        if new:
            part = dataset[new]
            given = {name: each for name, each in encoding.items() if name in part.variables}
            encoded, _ = encode_dataset(part, given, self.tree.layout)
            self.tree.add_variables(path, {name: encoded[name] for name in new}, unlimited, growing)
        node = self.opened.hierarchy.nodes[path]
        if self.options.mode in ("a", "a-"):
            attributes = user_attributes(attributes)
            self._check_holds([f"the attribute {name}" for name in attributes])
            changes = [*attribute_changes(node, xarray_attributes(group), attributes)]
            changed = [change.member[0] for change in changes if change.member]
            self.tree.note_types(
                path, {name: attributes[name] for name in changed if name in attributes}
            )
            self.changes += changes

    def _stored(self, group: Group, dataset: Dataset) -> dict[str, Variable]:
        """Give the stored variables of a dataset's names, decoded, their values still there."""
        found = GroupSource(self.opened, group, None).variables
        present = {name: found[name] for name in map(str, dataset.variables) if name in found}
        for name in present:
            error = group.variables[name].error
            if error is not None:
                raise error
        decoded, _, _ = conventions.decode_cf_variables(
            present, {}, decode_timedelta=CFTimedeltaCoder()
        )
        return {str(name): variable for name, variable in decoded.items()}

    def _check(
        self,
        group: Group,
        dataset: Dataset,
        encoding: Mapping[str, Any],
        stored: Mapping[str, Variable],
    ) -> list[str]:
        """Check which variables there are on both sides; give the names of those that are new."""
        dim = self.options.append_dim
        for name in encoding:
            if name in stored:
                raise ConflictError(f"variable {name!r} already exists, but encoding was provided")
        new = [name for name in map(str, dataset.variables) if name not in stored]
        if new and (self.options.mode == "r+" or self.options.region is not None):
            raise ConflictError(
                f"dataset contains non-pre-existing variables {new!r}, which is not allowed with"
                " mode='r+' or region",
                remedy="Add them first with mode='a'",
            )
        self._check_holds(new)
        groups = [child_path(group.path, name) for name in new if name in group.groups]
        if groups:
            raise ConflictError(
                f"{groups[0]} is a group, no variable",
                remedy="Choose another name",
                store=self.opened.store.name,
            )
        if dim is None:
            return new
        visible = self.opened.visible_dimensions(group.path)
        if dim not in visible:
            raise ConflictError(
                f"append_dim={dim!r} does not match any existing dataset dimensions {list(visible)}"
            )
        strays = [name for name in new if dim in dataset[name].dims]
        if strays:
            raise ConflictError(
                f"the variables {strays} lie along {dim!r} and are not in the store, which has "
                f"{visible[dim].size} elements along it already",
                remedy="Leave them out, or write the store anew",
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
            check_coordinate(dim, coordinate, dataset[dim].variable, size, object_size)
        return new

    def _write(
        self,
        group: Group,
        name: str,
        given: Variable,
        stored: Variable,
        region: Mapping[str, slice],
    ) -> None:
        """Plan the values of an existing variable."""
        dim = self.options.append_dim
        variable = group.variables[name]
        assert variable.node is not None
        if variable.node.chunk_runs:
            raise UnsupportedError(
                "its chunks lie in a rectilinear grid, which is only read",
                remedy="Write the dataset to a new store",
            )
        if given.dims != stored.dims:
            if set(given.dims) != set(stored.dims):
                raise ConflictError(
                    f"variable {name!r} already exists with different dimension names "
                    f"{stored.dims} != {given.dims}"
                )
            given = given.transpose(*stored.dims)
        pieces = _pieces(name, given, stored, region, dim)
        if dim is not None and dim not in given.dims:
            if self.options.mode == "a":
                check_equal(name, given, stored)
            return
        refuse_reading({name: given}, self.opened.store, {variable.path})
        node = variable.node
        widening = self.options.mode != "r+" and not region and not node.shards
        data = encode_as_stored(given, stored, name, variable, widening=widening)
        if data.dtype.kind == "S" and data.dtype.itemsize > node.dtype.itemsize:
            self.widths[node.path] = data.dtype.itemsize
        shape = variable.shape or node.shape
        if dim is not None:
            axis = given.dims.index(dim)
            size = pieces[dim].stop
            dimension = variable.dimensions[axis]
            self.grown[dimension.path] = replace(dimension, size=size)
            shape = (*shape[:axis], size, *shape[axis + 1 :])
            self.changes.append(Change(node.path, "array", "members", ("shape",), list(shape)))
        node = replace(node, shape=shape)
        where = tuple([pieces[each] for each in map(str, given.dims)])
        where += tuple([slice(0, size) for size in data.shape[len(where) :]])  # characters
        if self.options.safe_chunks and self.options.mode == "r+" and where:
            check_shared_objects(node, where, self.opened.store)
        self.jobs.append(Job(node, where, data, appended=dim is not None))

    def finish(self) -> WritePlan:
        """Give the plan: new nodes, changed documents, and the consolidated one of all."""
        self._check_left_behind()
        hierarchy, store = self.opened.hierarchy, self.opened.store
        plan = WritePlan(self.zarr_format, jobs=self.jobs, widths=self.widths)
        zarr = writable_format(store, self.zarr_format)
        replaced = self.replaced_group
        gone = {path for path in hierarchy.nodes if _is_in(path, replaced)}
        kept = [path for path in hierarchy.nodes if path not in gone]
        if replaced is not None:
            refuse_reading({path: new.data for path, new in self.tree.written.items()}, store, gone)
            chunks = zarr.chunk_keys(replaced).prefix
            below = {zarr.listing_prefix(replaced), chunks[: chunks.rindex("/") + 1]}
            # No reader may find the group while its chunks go: that would be fill values.
            plan.removed += [key for path in sorted(gone) for key in zarr.node_keys(path)]
            plan.removed += sorted(below)
            if hierarchy.consolidated:
                plan.leading = refresh_consolidated(store, self.zarr_format, kept, {})
        added: list[str] = []
        new = [*self.tree.written, *self.tree.groups]
        if new:
            root = hierarchy.nodes["/"]
            side_by_side = is_universal(root) and BY_DIALECT["nczarr-4.8.1"].group in root.members
            if self.tree.layout.dialect == "nczarr-4.8.0" or side_by_side:
                raise UnsupportedError(
                    f"found {', '.join(new)}; what joins the store cannot be written in its "
                    "layout, that of netcdf-c 4.8.0 or an earlier one of universal",
                    remedy="Give it a newer one with xr_nczarr.upgrade (nczarr upgrade)",
                    store=store.name,
                )
            made = self.tree.hierarchy()
            # Not again what is there: neither groups nor what cannot be read.
            added = [path for path in made.nodes if path in gone or path not in hierarchy.nodes]
            check_names(store, self.zarr_format, {path: made.nodes[path] for path in added}, kept)
            for path in added:
                plan.documents.update(zarr.render_node(made.nodes[path]))
            plan.jobs += self.tree.jobs(made)
        self.tree.report_changes()
        self._list_children(added)
        changes = [*self.changes, *self._dimension_changes()]
        plan.documents.update(edit_documents(store, self.zarr_format, changes))
        if plan.documents and (self.options.consolidated or hierarchy.consolidated):
            # Of what is new all documents are in the plan; those that are stored there go.
            plan.documents.update(
                refresh_consolidated(store, self.zarr_format, kept, plan.documents)
            )
        return plan

    def _dimension_changes(self) -> Iterator[Change]:
        """Give the changes of existing groups whose dimensions grow, or that get new ones."""
        by_group: dict[str, list[Dimension]] = {}
        for dimension in self.grown.values():
            by_group.setdefault(parent_path(dimension.path), []).append(dimension)
        for path in self.known:
            old = self.opened.group(path).dimensions
            new = self.tree.group(path).dimensions if self.tree.written else {}
            fresh = [each for name, each in new.items() if name not in old]
            by_group.setdefault(path, []).extend(fresh)
        for path, dimensions in by_group.items():
            node = self.opened.hierarchy.nodes.get(path)
            if dimensions and isinstance(node, GroupNode):
                yield from dimension_changes(node, dimensions)

    def _list_children(self, added: Collection[str]) -> None:
        for path in {parent_path(each) for each in added} & self.known:
            node = self.opened.hierarchy.nodes[path]
            if isinstance(node, GroupNode):
                below = [each for each in added if parent_path(each) == path]
                arrays = [node_name(each) for each in below if each in self.tree.written]
                groups = [node_name(each) for each in below if each not in self.tree.written]
                self.changes += listing_changes(node, arrays, groups)

    def _check_left_behind(self) -> None:
        """Refuse to grow a dimension along which other variables lie that get no new values."""
        appended = {job.node.path for job in self.jobs if job.appended}
        left = [
            each.path
            for each in self.opened.root.all_variables()
            if each.path not in appended
            and any(dimension.path in self.grown for dimension in each.dimensions)
        ]
        if left:
            raise ConflictError(
                f"the variables {', '.join(left)} lie along {self.options.append_dim!r} and are "
                "not in the dataset: they would be left without values",
                remedy="Append all variables that share the dimension at once",
                store=self.opened.store.name,
            )


def _is_in(path: str, group: str | None) -> bool:
    """Tell a group itself and all below it."""
    return group is not None and f"{path}/".startswith(f"{group}/")


def _layout_of(opened: OpenedStore, asked: Layout) -> Layout:
    """Give the layout in which new nodes join those of a store."""
    hierarchy, dialect = opened.hierarchy, opened.root.dialect
    root = hierarchy.nodes["/"]
    if dialect == "nczarr-preview":
        dialect = "nczarr"
    elif is_universal(root):
        dialect = "universal"
    return replace(asked, zarr=FORMATS[hierarchy.zarr_format], dialect=dialect)


def _pieces(
    name: str,
    given: Variable,
    stored: Variable,
    region: Mapping[str, slice],
    append_dim: str | None,
) -> dict[str, slice]:
    """Give where each dimension of the given values goes, in elements of the stored array."""
    pieces = {}
    for each, size in stored.sizes.items():
        dim = str(each)
        start, stop, _ = region.get(dim, slice(None)).indices(size)
        pieces[dim] = slice(start, stop)
        if dim == append_dim:
            pieces[dim] = slice(size, size + given.sizes[dim])
    wanted = {dim: piece.stop - piece.start for dim, piece in pieces.items()}
    found = dict(given.sizes)
    if wanted != found:
        raise ConflictError(
            f"variable {name!r} already exists with different dimension sizes: {wanted} != {found}",
            remedy="Unable to update size for existing dimension: use append_dim or region",
        )
    return pieces

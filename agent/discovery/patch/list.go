package patch

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// insertByPosition applies a patch to an ordered list. It returns the list and reports whether it
// changed. meets reports whether the patch matches an element. If the patch names no element (named
// is false), insertions are made at the beginning or end, and REMOVE and REPLACE have no effect.
func insertByPosition[E proto.Message](p *patch, list []E, named bool,
	meets func(E) bool) ([]E, bool) {
	value := func() E { return proto.Clone(p.value).(E) }
	at := -1
	if named {
		at = slices.IndexFunc(list, meets)
	}
	switch p.operation {
	case networking.EnvoyFilter_Patch_ADD:
		return append(list, value()), true
	case networking.EnvoyFilter_Patch_INSERT_FIRST:
		return slices.Insert(list, 0, value()), true
	case networking.EnvoyFilter_Patch_INSERT_AFTER:
		if !named {
			return append(list, value()), true
		} else if at >= 0 {
			return slices.Insert(list, at+1, value()), true
		}
	case networking.EnvoyFilter_Patch_INSERT_BEFORE:
		if !named {
			return slices.Insert(list, 0, value()), true
		} else if at >= 0 {
			return slices.Insert(list, at, value()), true
		}
	case networking.EnvoyFilter_Patch_REPLACE:
		if at >= 0 {
			list[at] = value()
			return list, true
		}
	case networking.EnvoyFilter_Patch_REMOVE:
		if at >= 0 {
			return slices.DeleteFunc(list, meets), true
		}
	}
	return list, false
}

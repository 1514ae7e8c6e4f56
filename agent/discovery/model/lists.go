package model

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"outrider.org/outrider/agent/discovery/object"
)

// replace returns a copy of a list of objects, ordered by age, with a change applied.
func replace(list []*object.Object, c object.Change) []*object.Object {
	list = slices.DeleteFunc(slices.Clone(list), func(o *object.Object) bool { return o == c.Old })
	if c.New != nil {
		at, _ := slices.BinarySearchFunc(list, c.New, object.CompareAge)
		list = slices.Insert(list, at, c.New)
	}
	return list
}

// insert adds an element to the ordered list of a key. It copies the list.
func insert[K, T comparable](into map[K][]T, key K, element T, order func(a, b T) int) {
	all := into[key]
	at, _ := slices.BinarySearchFunc(all, element, order)
	into[key] = slices.Insert(slices.Clip(all), at, element)
}

func remove[K, T comparable](from map[K][]T, key K, element T) {
	rest := slices.DeleteFunc(slices.Clone(from[key]), func(x T) bool { return x == element })
	if len(rest) == 0 {
		delete(from, key)
		return
	}
	from[key] = rest
}

// patterns returns a list of wildcard hosts, the narrowest first, after a change of hosts: changed
// wildcard hosts that exist are added, and others removed.
func patterns(list []string, changed map[string]struct{}, exists func(string) bool) []string {
	for pattern := range maps.Keys(changed) {
		if !IsWildcard(pattern) {
			continue
		}
		list = slices.DeleteFunc(slices.Clone(list), func(p string) bool { return p == pattern })
		if exists(pattern) {
			at, _ := slices.BinarySearchFunc(list, pattern, narrowerThenName)
			list = slices.Insert(list, at, pattern)
		}
	}
	return list
}

func narrowerThenName(a, b string) int {
	return cmp.Or(compareHosts(a, b), strings.Compare(a, b))
}

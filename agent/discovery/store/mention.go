package store

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"

	"outrider.org/outrider/agent/discovery/object"
)

// Unreadable text may contain policies. Unless the last good versions of all policies that it may
// contain are in force, everything is denied.

var (
	// notContent matches comments, the copy of an object that kubectl adds to it, and the label
	// that Istio gives to workloads. It does not match a # that is followed by quotes or braces,
	// because that may be part of a string.
	notContent = regexp.MustCompile(`(?m)^\s*#[^\r\n]*\r?$|[ \t]#[^\r\n"'{}]*\r?$|` +
		`kubectl\.kubernetes\.io/last-applied-configuration["']?:\s*(?:[|>][+-]?\s*\{[^\r\n]*$|` +
		`"(?:[^"\\\r\n]|\\.)*"|'[^'\r\n]*')|security\.istio\.io/tlsMode`)
	// headerKey matches a key beside the spec of an object, in any style of YAML and JSON, with a
	// value on the same line.
	headerKey = regexp.MustCompile(`(?:^|[\s{,"'])(apiVersion|kind|metadata|spec|name|namespace)["']?` +
		`[ \t]*:[ \t]*["']?([\w.-]*)`)
	// nextIndent matches the rest of a line and the indentation of the next one.
	nextIndent = regexp.MustCompile(`^[^\r\n]*[\r\n]+([ \t]*)`)
	// firstWord matches the first word of each key and value.
	firstWord = regexp.MustCompile(`(?m)(?:^|[:,{\[-])[ \t]*["']?(\w+)`)
)

// mentioned returns the keys of policies that the text may contain. It splits the text at each
// apiVersion, and returns a key for each part that mentions a kind or API group of policies. A key
// lacks the name if the part does not clearly name one policy, the kind if only the group is
// mentioned, and the namespace if it is invalid.
func (r *reader) mentioned() (all []object.Key) {
	// text in UTF-16 without a byte order mark has a zero byte in each character
	text := bytes.ReplaceAll(r.text, []byte{0}, nil)
	text = notContent.ReplaceAll(text, nil)
	var starts []int // start of each object; the lines "---" between documents may be missing
	for _, at := range headerKey.FindAllSubmatchIndex(text, -1) {
		if string(text[at[2]:at[3]]) == "apiVersion" {
			starts = append(starts, at[2])
		}
	}
	for len(starts) > 1 {
		last := starts[len(starts)-1]
		all = append(all, r.mentionedIn(text[last:])...)
		text, starts = text[:last], starts[:len(starts)-1]
	}
	return append(all, r.mentionedIn(text)...)
}

// mentionedIn returns the policies that a text mentions. The text should have at most one object.
func (r *reader) mentionedIn(text []byte) []object.Key {
	key, metadata, inMetadata := object.Key{}, 0, false
	var kinds []object.Kind
	var indent []byte // indentation of the first key of metadata
	// key.Name was found at the indentation of the first key of metadata, so it is the object's
	// name and not a label
	named := false
	// start of the line that contains the last match, and the position of that match
	start, end := 0, 0
	for _, match := range headerKey.FindAllSubmatchIndex(text, -1) {
		value := string(text[match[4]:match[5]])
		// if all keys are in one line, search that line only once
		if at := bytes.LastIndexAny(text[end:match[2]], "\r\n"); at >= 0 {
			start = end + at + 1
		}
		end = match[2]
		indented := bytes.Equal(bytes.TrimRight(text[start:end], `"'`), indent)
		switch name := string(text[match[2]:match[3]]); {
		case name == "kind":
			if kind := restrictingKind(value); kind != "" {
				key.Kind = object.Kind(kind)
				kinds = append(kinds, key.Kind)
			}
		case name == "metadata":
			inMetadata = true
			if metadata++; metadata > 1 {
				continue // with several metadata, the object's name is ambiguous
			}
			if next := nextIndent.FindSubmatch(text[match[3]:]); next != nil {
				indent = next[1]
			}
		case name == "spec":
			inMetadata = false
		case name == "name" && inMetadata && (key.Name == "" || !named && indented):
			key.Name, named = value, indented
		case name == "namespace" && inMetadata && key.Namespace == "":
			key.Namespace = value
		}
	}
	if len(kinds) == 0 && !mayRestrict(text) {
		return nil
	}
	var mentions []object.Kind
	for _, word := range firstWord.FindAllSubmatch(text, -1) {
		if _, restricts := restrictions[string(word[1])]; restricts {
			mentions = append(mentions, object.Kind(word[1]))
		}
	}
	if len(kinds) != 1 || metadata != 1 || len(mentions) > 1 {
		if len(mentions) < len(kinds) {
			mentions = kinds
		}
		all := make([]object.Key, max(1, len(mentions)))
		for i, kind := range mentions {
			all[i].Kind = kind
		}
		return all
	}
	switch {
	case key.Namespace == "":
		key.Namespace = r.namespace
	case !isLabel(key.Namespace):
		key.Namespace = ""
	}
	return []object.Key{key}
}

// withoutMentioned returns the last good versions without the policies that unreadable documents
// mention. A mention without a name removes one of the policies of its kind that are left. ok is
// false if a document mentions a policy that is neither in lastGood nor among the objects read from
// that document.
func (f *file) withoutMentioned(lastGood []*object.Object) (rest []*object.Object, ok bool) {
	rest = slices.Clone(lastGood)
	var unnamed []object.Key
	for _, d := range f.documents {
		own := slices.Clone(d.denials)
		for _, o := range d.objects {
			if o.Kind.CanRestrictAccess() {
				own = append(own, denial{policy: o.Key})
			}
		}
		for _, key := range d.mentioned {
			if at := slices.IndexFunc(own, func(n denial) bool { return n.isOf(key) }); at >= 0 {
				own = slices.Delete(own, at, at+1)
				continue
			}
			if key.Name == "" {
				unnamed = append(unnamed, key)
				continue
			}
			at := slices.IndexFunc(rest, func(o *object.Object) bool {
				return o.Kind == key.Kind && o.Name == key.Name &&
					(o.Namespace == key.Namespace || key.Namespace == "")
			})
			if at < 0 {
				return rest, false
			}
			rest = slices.Delete(rest, at, at+1)
		}
	}
	// keys with a kind are matched first, those without a kind last
	slices.SortStableFunc(unnamed, func(a, b object.Key) int { return -cmp.Compare(a.Kind, b.Kind) })
	for _, key := range unnamed {
		at := slices.IndexFunc(rest, func(o *object.Object) bool {
			return o.Kind == key.Kind || key.Kind == "" && o.Kind.CanRestrictAccess()
		})
		if at < 0 {
			return rest, false
		}
		rest = slices.Delete(rest, at, at+1)
	}
	return rest, true
}

// Package patch applies EnvoyFilters to translated resources, one resource at a time, in Istio's
// order and with Istio's rules. Envoy's messages that are not linked into the program remain
// TypedStructs, which only Envoy interprets.
package patch

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

type (
	applyTo   = networking.EnvoyFilter_ApplyTo
	operation = networking.EnvoyFilter_Patch_Operation
	context   = networking.EnvoyFilter_PatchContext
)

// patch is one element of an EnvoyFilter's configPatches.
type patch struct {
	object    *object.Object
	index     int
	applyTo   applyTo
	operation operation
	match     *networking.EnvoyFilter_EnvoyConfigObjectMatch // match of the resource; never nil
	// matches the proxy's version; nil: any
	version *regexp.Regexp
	// decoded value of the patch; nil for REMOVE; read-only
	value proto.Message
}

// EnvoyFilter is a parsed EnvoyFilter.
type EnvoyFilter struct {
	// UnlinkedMessages has the messages whose protobuf type is not linked into this program, so
	// that they remain TypedStructs, with their paths below the object's spec.
	UnlinkedMessages []store.UnlinkedMessage

	object  *object.Object
	patches []*patch
}

// longestVersion is Istio's limit for the length of a regular expression for versions.
const longestVersion = 1024

// Parse parses an EnvoyFilter. If a finding is an error, and not only a field that is unknown to
// this program (UnknownField), the EnvoyFilter must not be used.
func Parse(o *object.Object) (*EnvoyFilter, []object.Finding) {
	f := &EnvoyFilter{object: o}
	var findings []object.Finding
	for i, in := range o.Spec.(*networking.EnvoyFilter).ConfigPatches {
		p := &patch{object: o, index: i, applyTo: in.GetApplyTo(),
			operation: in.GetPatch().GetOperation(), match: in.GetMatch()}
		if p.match == nil {
			p.match = &networking.EnvoyFilter_EnvoyConfigObjectMatch{}
		}
		if !insertable[p.applyTo] {
			switch p.operation {
			case networking.EnvoyFilter_Patch_INSERT_AFTER,
				networking.EnvoyFilter_Patch_INSERT_BEFORE,
				networking.EnvoyFilter_Patch_INSERT_FIRST:
				// the order of these elements has no effect, so an insertion is an addition
				p.operation = networking.EnvoyFilter_Patch_ADD
			}
		}
		if expression := p.match.GetProxy().GetProxyVersion(); expression != "" &&
			len(expression) <= longestVersion {
			// validation reports invalid expressions; such a patch matches no proxy
			p.version, _ = regexp.Compile(expression)
		}
		if value := in.GetPatch().GetValue(); value != nil {
			message, wrong, unlinked := build(p.applyTo, value,
				fmt.Sprintf("configPatches[%d].patch.value", i))
			findings, f.UnlinkedMessages = append(findings, wrong...), append(f.UnlinkedMessages,
				unlinked...)
			if message == nil {
				continue
			}
			p.value = message
		}
		f.patches = append(f.patches, p)
	}
	return f, findings
}

// insertable contains the kinds of elements whose order in their list matters.
var insertable = map[applyTo]bool{networking.EnvoyFilter_LISTENER_FILTER: true,
	networking.EnvoyFilter_NETWORK_FILTER: true,
	networking.EnvoyFilter_HTTP_FILTER:    true, networking.EnvoyFilter_HTTP_ROUTE: true}

// meets reports whether a patch is for a proxy with these properties.
func (p *patch) meets(node model.Node) bool {
	proxy := p.match.GetProxy()
	if expression := proxy.GetProxyVersion(); expression != "" &&
		(p.version == nil || node.IstioVersion == "" || !p.version.MatchString(node.IstioVersion)) {
		return false
	}
	for key, value := range proxy.GetMetadata() {
		if got, ok := node.Metadata[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func (p *patch) entry() Patch { return Patch{p.object, p.index} }

// in reports whether a patch is for a context, such as inbound or outbound traffic of a sidecar.
func (p *patch) in(c context) bool {
	return p.match.Context == networking.EnvoyFilter_ANY || p.match.Context == c
}

// merges reports whether the patch merges its value into the element. replace reports whether lists
// of the value replace those of the element instead of extending them.
func (p *patch) merges() (replace, ok bool) {
	replace = p.operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	return replace, replace || p.operation == networking.EnvoyFilter_Patch_MERGE
}

func (p *patch) problem(severity condition.Severity, message, fix string) object.Problem {
	return p.object.NewProblem(object.Finding{Field: fmt.Sprintf("configPatches[%d]", p.index),
		Severity: severity, Message: message, Fix: fix})
}

// Package patch applies EnvoyFilters to what everything else made: to each resource by itself, at
// the end, in Istio's order and with Istio's rules. It works on messages of Envoy's that Outrider
// links; what it does not link travels as TypedStruct and is read by Envoy alone.
package patch

import (
	"fmt"
	"regexp"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

type (
	applyTo   = networking.EnvoyFilter_ApplyTo
	operation = networking.EnvoyFilter_Patch_Operation
	context   = networking.EnvoyFilter_PatchContext
)

// patch is one entry of an EnvoyFilter's configPatches.
type patch struct {
	object    *object.Object
	index     int
	applyTo   applyTo
	operation operation
	match     *networking.EnvoyFilter_EnvoyConfigObjectMatch // never nil
	version   *regexp.Regexp                                 // of the proxy; nil: any
	// nil with REMOVE. Not to be written to
	value proto.Message
}

// Filter is an EnvoyFilter, read.
type Filter struct {
	object  *object.Object
	patches []*patch
}

// longestVersion is the longest expression for versions that Istio takes.
const longestVersion = 1024

// Read reads an EnvoyFilter. The findings say what is wrong with its values: with an error it is
// not to be used.
func Read(o *object.Object) (*Filter, []object.Finding) {
	f := &Filter{object: o}
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
				p.operation = networking.EnvoyFilter_Patch_ADD // there is no order
			}
		}
		if expression := p.match.GetProxy().GetProxyVersion(); expression != "" &&
			len(expression) <= longestVersion {
			// one that is none was refused when it was read
			p.version, _ = regexp.Compile(expression)
		}
		if value := in.GetPatch().GetValue(); value != nil {
			message, wrong := build(p.applyTo, value, fmt.Sprintf("configPatches[%d].patch.value",
				i))
			findings = append(findings, wrong...)
			if message == nil {
				continue
			}
			p.value = message
		}
		f.patches = append(f.patches, p)
	}
	return f, findings
}

// insertable are the lists whose order counts.
var insertable = map[applyTo]bool{networking.EnvoyFilter_LISTENER_FILTER: true,
	networking.EnvoyFilter_NETWORK_FILTER: true,
	networking.EnvoyFilter_HTTP_FILTER:    true, networking.EnvoyFilter_HTTP_ROUTE: true}

// meets tells whether a patch is for a proxy.
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

func (p *patch) entry() Entry { return Entry{p.object, p.index} }

// in tells whether a patch is for a context.
func (p *patch) in(c context) bool {
	return p.match.Context == networking.EnvoyFilter_ANY || p.match.Context == c
}

// merges tells whether the value is laid over what is there; replace: lists are put in place of
// those there.
func (p *patch) merges() (replace, ok bool) {
	replace = p.operation == networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
	return replace, replace || p.operation == networking.EnvoyFilter_Patch_MERGE
}

func (p *patch) problem(severity condition.Severity, message, cure string) object.Problem {
	return p.object.Problem(object.Finding{Field: fmt.Sprintf("configPatches[%d]", p.index),
		Severity: severity, Message: message, Cure: cure})
}

package validate

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	extensions "istio.io/api/extensions/v1alpha1"
	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/object"
)

const (
	maxPluginName   = 256
	maxVariableName = 256
	maxPullSecret   = 253
	maxMatches      = 4096
	maxScript       = 64 << 10
)

var (
	moduleSchemes = []string{"", "file", "http", "https", "oci"}
	moduleSum     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

func (c *checker) wasmPlugin(p *extensions.WasmPlugin) {
	c.targeted(p)
	c.module("", &extensions.WasmConfig{Url: p.Url, Sha256: p.Sha256,
		ImagePullSecret: p.ImagePullSecret, PluginConfig: p.PluginConfig, PluginName: p.PluginName,
		VmConfig: p.VmConfig})
	if p.VerificationKey != "" {
		c.without("verificationKey")
	}
	for i, m := range p.Match {
		c.trafficSelector(i, m.GetPorts())
	}
	c.most("match", len(p.Match), maxMatches)
	c.openGuard("", p, p.FailStrategy)
}

// openGuard notes that an extension that restricts access lets requests pass when it fails.
func (c *checker) openGuard(at string, spec proto.Message, on extensions.FailStrategy) {
	if on == extensions.FailStrategy_FAIL_OPEN && object.SpecRestrictsAccess(spec) {
		c.findings = append(c.findings, object.Finding{Field: at + "failStrategy",
			Severity: condition.Info, Message: "what the extension is for passes unchecked when " +
				"its code fails; without its code everything is denied", Fix: "write FAIL_CLOSE to " +
				"deny in both cases"})
	}
}

// plural adapts a TrafficExtension, which has no targetRef, to the interface of objects with
// targets.
type plural struct{ *extensions.TrafficExtension }

// GetTargetRef returns nil.
func (plural) GetTargetRef() *types.PolicyTargetReference { return nil }

func (c *checker) trafficExtension(x *extensions.TrafficExtension) {
	c.targeted(plural{x})
	switch {
	case x.GetWasm() != nil:
		c.module("wasm", x.GetWasm())
		c.openGuard("wasm.", x, x.GetWasm().FailStrategy)
	case x.GetLua() == nil:
		c.fail("wasm", "there is neither wasm nor lua", "write one of them")
	case x.GetLua().InlineCode == "":
		c.fail("lua.inlineCode", "is missing", "write the code")
	case len(x.GetLua().InlineCode) > maxScript:
		c.fail("lua.inlineCode", fmt.Sprintf("has more than %d bytes", maxScript), "shorten it")
	}
	for i, m := range x.Match {
		c.trafficSelector(i, m.GetPorts())
	}
	c.most("match", len(x.Match), maxMatches)
}

// module checks a module and its configuration; at is the path of the field that has them.
func (c *checker) module(at string, w *extensions.WasmConfig) {
	if at != "" {
		at += "."
	}
	c.moduleURL(at+"url", w.Url)
	if w.Sha256 != "" && !moduleSum.MatchString(w.Sha256) {
		c.fail(at+"sha256", fmt.Sprintf("%q is no SHA-256", w.Sha256), "write 64 of 0-9 and a-f")
	}
	c.longest(at+"imagePullSecret", w.ImagePullSecret, maxPullSecret)
	if w.ImagePullSecret != "" {
		if err := credential.CheckName(w.ImagePullSecret); err != nil {
			c.fail(at+"imagePullSecret", err.Error(), "write the name of a credential")
		}
	}
	c.longest(at+"pluginName", w.PluginName, maxPluginName)
	if !finite(structpb.NewStructValue(w.PluginConfig)) {
		c.fail(at+"pluginConfig", "has a number that JSON cannot have", "write a finite number")
	}
	names := map[string]bool{}
	for i, v := range w.VmConfig.GetEnv() {
		field := fmt.Sprintf("%svmConfig.env[%d]", at, i)
		switch {
		case v.GetName() == "":
			c.fail(field+".name", "is missing", "name the variable")
		case names[v.Name]:
			c.fail(field+".name", fmt.Sprintf("%q is set twice", v.Name), "remove one")
		case v.ValueFrom != extensions.EnvValueSource_INLINE && v.Value != "":
			c.fail(field+".value", "is set together with valueFrom: HOST", "remove one of them")
		}
		c.longest(field+".name", v.GetName(), maxVariableName)
		names[v.GetName()] = true
	}
}

func (c *checker) moduleURL(field, text string) {
	if text == "" {
		c.fail(field, "is missing", "write the URL of the module")
		return
	}
	// like Istio, accept the name of an image as a URL without a scheme
	parsed, err := url.ParseRequestURI(text)
	if err != nil {
		parsed, err = url.ParseRequestURI("http://" + text)
	}
	switch {
	case err != nil:
		c.fail(field, fmt.Sprintf("%q is no URL", text), "write file://, http://, https:// or oci://")
	case !slices.Contains(moduleSchemes, parsed.Scheme):
		c.fail(field, fmt.Sprintf("the scheme of %q is not supported", text),
			"write file://, http://, https:// or oci://")
	case parsed.Scheme == "file" && parsed.Path == "":
		c.fail(field, fmt.Sprintf("%q names no file", text), "write file:///PATH")
	}
}

func (c *checker) trafficSelector(index int, ports []*types.PortSelector) {
	for i, p := range ports {
		c.port(fmt.Sprintf("match[%d].ports[%d].number", index, i), p.GetNumber())
	}
}

// finite reports whether a value has only numbers that JSON can have.
func finite(v *structpb.Value) bool {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return !math.IsNaN(kind.NumberValue) && !math.IsInf(kind.NumberValue, 0)
	case *structpb.Value_StructValue:
		for _, field := range kind.StructValue.GetFields() {
			if !finite(field) {
				return false
			}
		}
	case *structpb.Value_ListValue:
		return !slices.ContainsFunc(kind.ListValue.GetValues(), func(v *structpb.Value) bool {
			return !finite(v)
		})
	}
	return true
}

package view

import (
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// publishedExtension is the configuration of an extension that a view has published.
type publishedExtension struct {
	object *object.Object
	// address of the module's code, which differs for another version; nil: the module is missing
	module      *byte
	connections bool // the extension is a network filter
}

// extend publishes the configurations of extensions that a change affects.
func (v *ProxyView) extend(touched model.ChangeSummary) {
	if !v.guards.extended && !touched.ModulesChanged {
		return
	}
	before := v.extensions
	v.extensions = map[string]publishedExtension{}
	for _, e := range v.guards.Extensions {
		unit := "extension/" + e.Name()
		if v.guards.isFormer(e) {
			v.extensions[unit] = before[unit]
			v.report(unit, nil)
			continue
		}
		r, now, problems := v.extension(e, before[unit])
		v.extensions[unit] = now
		v.report(unit, problems)
		if r != nil {
			v.put(unit, r)
		}
	}
	for _, e := range v.guards.pending {
		unit := "extension/" + e.Name()
		v.extensions[unit] = publishedExtension{}
		v.report(unit, []object.Problem{e.Object.Warning("url", "it takes effect once its module is "+
			"there, or cannot be fetched", "")})
	}
	for unit := range before {
		if _, still := v.extensions[unit]; !still {
			v.put(unit)
			v.report(unit, nil)
		}
	}
}

// extension returns the configuration of an extension to publish. It returns nil if the published
// one stays in force: it is equal, or the module of the changed extension is still missing.
func (v *ProxyView) extension(e model.Extension, before publishedExtension) (*resource.Resource,
	publishedExtension, []object.Problem) {
	now := publishedExtension{object: e.Object, connections: e.IsNetworkFilter()}
	problem := func(severity condition.Severity, field, message, fix string) []object.Problem {
		return []object.Problem{e.Object.NewProblem(object.Finding{Field: field, Severity: severity,
			Message: message, Fix: fix})}
	}
	refused := func(err error) []object.Problem {
		return problem(condition.Error, "", "Envoy would refuse the extension: "+err.Error(),
			"correct the value it names")
	}
	if e.GetLua() != nil {
		if now == before {
			return nil, now, nil
		}
		r, err := translate.LuaExtension(e)
		if err != nil {
			return nil, before, refused(err)
		}
		return r, now, nil
	}
	if v.world.ClientsFetchModules() {
		r, err := translate.RemoteExtension(e)
		switch {
		case err != nil:
			return nil, before, refused(err)
		case e.GetWasm().ImagePullSecret != "":
			return r, now, problem(condition.Warning, "imagePullSecret", "has no effect: this server "+
				"has no credentials for its clients", "use a registry that needs none")
		}
		return r, now, nil
	}
	code, fetching := v.world.Module(e)
	if code != nil {
		var problems []object.Problem
		if fetching != nil {
			problems = problem(condition.Error, "url", "its module cannot be read again: "+
				fetching.Error()+"; the former one remains in force", "correct the file")
		}
		if now.module = &code[0]; now == before {
			return nil, now, problems
		}
		r, err := translate.InlineExtension(e, code)
		if err != nil {
			return nil, before, refused(err)
		}
		return r, now, problems
	}
	effect := "everything that it is for is denied"
	if e.FailsOpen() {
		effect = "everything passes without it"
	}
	var r *resource.Resource
	if before.module != nil && before.connections == now.connections {
		effect, now = "its former version remains in force", before
	} else {
		var err error
		if r, err = translate.ExtensionWithoutModule(e); err != nil {
			return nil, before, refused(err)
		}
	}
	if fetching == nil { // the first attempt to fetch the module has not ended
		return r, now, problem(condition.Warning, "url", "its module is being fetched; until then "+
			effect, "")
	}
	return r, now, problem(condition.Error, "url", "its module cannot be fetched: "+
		fetching.Error()+"; "+effect, "correct url, sha256 or imagePullSecret, or the server")
}

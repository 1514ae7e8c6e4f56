// Package render makes Envoy's bootstrap from typed input or a user's file. It is pure: it reads no
// file, environment or clock, and equal input gives equal bytes. Only outrider-bootstrap links it.
//
// There are four sources, and a merge that applies to all of them:
//
//	buildBootstrap, encodeJSON  bootstrap.Input
//	expand                      a user's text/template, whose data have Istio's names
//	custom                      a user's complete bootstrap
//	fromUpstream                the upstream server's bootstrap, plus Outrider's own parts
//	override                    merges a user's file into any of these, by Envoy's rules
package render

import "outrider.org/outrider/bootstrap"

// FromRequest renders a bootstrap with the admin socket bootstrap.AdminSocketPlaceholder. Errors in
// a user's file are of type *bootstrap.Error.
func FromRequest(request bootstrap.Request) (*bootstrap.Rendered, error) {
	request.Input.AdminSocket = bootstrap.AdminSocketPlaceholder
	document, text, err := base(request)
	if err != nil {
		return nil, err
	}
	if file := request.Override; file != nil {
		if err := override(document, file.Path, file.Content); err != nil {
			return nil, err
		}
		text = nil
	}
	if text == nil {
		if text, err = document.encode(); err != nil {
			return nil, err
		}
	}
	rendered := &bootstrap.Rendered{Text: text, ReferencedFiles: certificateFiles(document)}
	if request.Custom != nil || request.Template != nil {
		// The admin address of the file is the same for every epoch.
		network, address, err := adminAddress(document)
		if err != nil {
			return nil, err
		}
		if network != "unix" || address != bootstrap.AdminSocketPlaceholder {
			rendered.AdminAddress = address
		}
	}
	return rendered, nil
}

// base returns the bootstrap before the override, and its text (JSON). If text is nil, the caller
// must encode the document.
func base(request bootstrap.Request) (document *value, text []byte, err error) {
	switch {
	case request.Custom != nil:
		return custom(request.Custom.Path, request.Custom.Content)
	case request.Template != nil:
		document, err = expand(request.Template.Path, request.Template.Content, request.Input)
		return document, nil, err
	}
	built, err := buildBootstrap(request.Input)
	if err == nil && request.Upstream != nil {
		built, err = fromUpstream(built, request.Upstream)
	}
	if err != nil {
		return nil, nil, err
	}
	if text, err = encodeJSON(built); err != nil {
		return nil, nil, err
	}
	document, err = parseJSON("bootstrap", text)
	return document, text, err
}

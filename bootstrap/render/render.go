// Package render makes Envoy's bootstrap from typed input or a user's file. It is pure: it reads no
// file, environment or clock, and equal input gives equal bytes. Only outrider-bootstrap links it.
//
// There are three sources, and a merge that applies to all of them:
//
//	Build and JSON      from bootstrap.Input
//	Template            a text/template of the user's, with Istio's names for the data
//	Custom              a complete bootstrap of the user's
//	Override            merges a file of the user's into any of them, by Envoy's rules
package render

import "outrider.org/outrider/bootstrap"

// Render renders a request with the admin socket bootstrap.AnySocket. Errors in a user's file are
// of type *bootstrap.Error.
func Render(request bootstrap.Request) (*bootstrap.Rendered, error) {
	request.Input.AdminSocket = bootstrap.AnySocket
	text, name, err := base(request)
	if err != nil {
		return nil, err
	}
	if file := request.Override; file != nil {
		if text, err = Override(text, name, file.Path, file.Content); err != nil {
			return nil, err
		}
	}
	files, err := CertificateFiles(text)
	if err != nil {
		return nil, err
	}
	rendered := &bootstrap.Rendered{Text: text, Files: files}
	if request.Custom != nil || request.Template != nil {
		// The admin address of the file is the same for every epoch.
		network, address, err := AdminAddress(text)
		if err != nil {
			return nil, err
		}
		if network != "unix" || address != bootstrap.AnySocket {
			rendered.Admin = address
		}
	}
	return rendered, nil
}

// base returns the bootstrap before the override, and its name for messages.
func base(request bootstrap.Request) (text []byte, name string, err error) {
	switch {
	case request.Custom != nil:
		text, err = Custom(request.Custom.Path, request.Custom.Content)
		return text, request.Custom.Path, err
	case request.Template != nil:
		text, err = Template(request.Template.Path, request.Template.Content, request.Input)
		return text, request.Template.Path, err
	}
	built, err := Build(request.Input)
	if err != nil {
		return nil, "", err
	}
	text, err = JSON(built)
	return text, "bootstrap", err
}
